"""What the package takes from Rust. Private: use `surefoot`."""

__version__: str
