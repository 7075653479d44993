"""How long survivors of a fault take to report it, and whether they say what is true."""
