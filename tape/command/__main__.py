"""``python -m tape.command`` is the same as ``tape``."""

from tape.command import main

if __name__ == "__main__":
    main()
