"""Starting the product, and sending it requests as its clients do.

    async with Upstream() as upstream:
        upstream.script("m", [...])
        config = make_config(upstream.url, models=["m"], tools=["get_weather"])
        async with serve(create_app(config)) as url, openai_client(url) as client:
            ...

`server` runs an app in the event loop of the test, `process` the command in a child, `wire` speaks raw HTTP, `toolshed`
holds the tools that tests offer, `needs` skips what this machine cannot run.
"""
