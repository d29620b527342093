"""Says whether there may be anybody who decides about approvals."""

from callgate.callers.exposure import keyless_may_approve
from callgate.config.schema.whole import Config


def may_have_more_keys(config: Config) -> bool:
    """True if keys may be created while the server runs."""
    return config.data_dir is not None or config.ledger.url is not None


def nobody_may_answer(config: Config) -> bool:
    """True if no caller may answer what a tool asks while it runs."""
    if config.approvals.input == "own" and (config.keys_and_issuers() or may_have_more_keys(config)):
        return False
    return nobody_may_approve(config)


def nobody_may_approve(config: Config) -> bool:
    """True if no caller may decide about approvals: none of the keys, or nobody without one where none is required."""
    if config.auth.mode == "off" or not (config.keys_and_issuers() or may_have_more_keys(config)):
        return not keyless_may_approve(config.server.host, config.approvals.keyless)
    return not may_have_more_keys(config) and not any(
        rights.approve for rights in (*config.keys, *config.groups().values())
    )
