"""PyTorch: torch.export, torch.compile, and modules with open shapes."""
