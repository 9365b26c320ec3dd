"""The one error a user of nacre meets: what came, what was expected, which names exist."""


class NacreError(Exception):
    """Raised for every mistake nacre can name. Nothing already learnt has changed when it is raised."""
