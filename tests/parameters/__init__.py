"""Every field, item and type of tool that the SDKs of OpenAI and Anthropic declare, through every API and lane."""
