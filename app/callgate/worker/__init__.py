"""`callgate worker`: runs calls of tools for proxies on other machines. The only package that imports celery."""
