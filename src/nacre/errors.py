"""The error that a user of nacre meets: what came, what was expected, which names exist."""


class NacreError(Exception):
    """Raised for every mistake nacre can name. Nothing already learnt has changed when it is raised."""


class WrongUsage(NacreError):
    """What was asked for makes no sense, whatever the machine and the data; the command ends with status 2."""
