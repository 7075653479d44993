"""What an optimizer needs on many ranks: gradients reduced, states equal."""
