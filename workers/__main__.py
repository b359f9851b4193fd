"""`python -m workers`."""

from workers.bootstrap import main

if __name__ == "__main__":
    main()
