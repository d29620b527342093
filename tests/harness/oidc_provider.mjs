// A certified OpenID provider (oidc-provider) for the tests: whoever types a name is signed in as that.
// node oidc_provider.mjs FOLDER PORT AUDIENCE SECONDS, with the folder of its environment

import { pathToFileURL } from "node:url";

const [folder, port, audience, seconds] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));
const issuer = `http://127.0.0.1:${port}`;

/** Whoever has a dot in the name is an operator too. */
const groupsOf = (name) => (name.includes(".") ? ["operators", "staff"] : ["staff"]);
const claimsOf = (name) => ({ name: name.split(".").map((part) => part[0].toUpperCase() + part.slice(1)).join(" "), groups: groupsOf(name) });

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "callgate-page",
      token_endpoint_auth_method: "none",
      redirect_uris: ["http://127.0.0.1/"],
      post_logout_redirect_uris: ["http://127.0.0.1/"],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
    },
    {
      client_id: "program",
      client_secret: "a-secret-of-the-tests",
      redirect_uris: [],
      grant_types: ["client_credentials"],
      response_types: [],
    },
  ],
  clientBasedCORS: () => true,
  conformIdTokenClaims: false,
  claims: { openid: ["sub"], profile: ["name", "groups"] },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, ...claimsOf(sub) }) }),
  issueRefreshToken: (_, client) => client.grantTypeAllowed("refresh_token"),
  extraTokenClaims: (_, token) => (token.accountId ? claimsOf(token.accountId) : { sub: token.clientId, groups: ["staff"] }),
  ttl: { AccessToken: Number(seconds), IdToken: Number(seconds), ClientCredentials: Number(seconds), RefreshToken: 600, Session: 600, Grant: 600, Interaction: 600 },
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => `urn:${audience}`,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({ scope: "use", audience, accessTokenFormat: "jwt", accessTokenTTL: Number(seconds) }),
    },
  },
});
// The port of the page is not known before it is served.
provider.Client.prototype.redirectUriAllowed = (uri) => uri.startsWith("http://127.0.0.1:");
provider.Client.prototype.postLogoutRedirectUriAllowed = provider.Client.prototype.redirectUriAllowed;
provider.listen(Number(port), "127.0.0.1", () => console.log(`ready ${issuer}`));
