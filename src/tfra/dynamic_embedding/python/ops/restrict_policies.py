"""The restrict policies, under the name of their module in TFRA."""

from tfra.dynamic_embedding._upkeep.restrict_policies import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)

__all__ = ["FrequencyRestrictPolicy", "RestrictPolicy", "TimestampRestrictPolicy"]
