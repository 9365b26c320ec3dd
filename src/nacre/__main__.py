"""`python -m nacre`: the nacre command."""

from nacre.cli import main

if __name__ == "__main__":
    main()
