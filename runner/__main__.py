from runner.commands.cli import main

if __name__ == "__main__":  # not in the processes of `recipe check`, where they import this
    main()
