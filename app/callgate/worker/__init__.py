"""`callgate worker`: runs tool calls for proxies on other machines. The only package that imports celery."""
