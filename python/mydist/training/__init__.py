"""What a training script uses around its optimizer."""
