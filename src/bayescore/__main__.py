"""`python -m bayescore` is the command `bayescore`."""

from bayescore.cli import main

if __name__ == "__main__":
    main()
