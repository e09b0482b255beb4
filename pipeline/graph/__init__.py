"""How everything is run, once: the plan, what is up to date, the processes of stages, and DVC's record of them."""
