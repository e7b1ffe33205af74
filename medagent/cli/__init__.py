"""The command line: the top floor, which may import every package and which nothing imports."""
