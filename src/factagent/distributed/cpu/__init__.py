"""verl without a GPU: a platform, an engine and a sampler, registered through verl's own extension points.

For tests and for a first look at a configuration. Importing this package registers them (Ray's workers do so because
`VERL_USE_EXTERNAL_MODULES` names it, see `overrides.environment_of`); nothing of verl is changed. Imports verl.
"""

# The platform comes first: the other modules make verl look for the one that it runs on.
from factagent.distributed.cpu import platform

# isort: split
from factagent.distributed.cpu import engine, sampler

__all__ = ["engine", "platform", "sampler"]
