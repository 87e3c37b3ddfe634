from runner.commands.cli import main

if __name__ == "__main__":  # the processes of `recipe check` import this module
    main()
