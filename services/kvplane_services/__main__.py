"""`python -m kvplane_services`: `kvplane`, for where only the interpreter's path is known."""

from kvplane_services.cli.main import main

if __name__ == "__main__":
    main()
