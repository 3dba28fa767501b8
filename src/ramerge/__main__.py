"""`python -m ramerge` is `ramerge`."""

from ramerge.cli import main

if __name__ == "__main__":
    main()
