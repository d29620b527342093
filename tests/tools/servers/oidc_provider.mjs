// The npm package oidc-provider as an authorization server for one tool server: node oidc_provider.mjs PORT RESOURCE LIFE
import Provider from 'oidc-provider';

const port = Number(process.argv[2]);
const resource = process.argv[3];
const life = Number(process.argv[4]);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'machine', client_secret: 'm4chine-m4chine-m4chine-m4chine-m4chine',
    grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
  }],
  scopes: ['openid', 'offline_access', 'tools:read'],
  clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post', 'private_key_jwt'],
  pkce: { required: () => true },
  issueRefreshToken: async () => true,
  rotateRefreshToken: true,
  ttl: { AccessToken: life, RefreshToken: 600, ClientCredentials: life },
  findAccount: async (context, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: (context, wanted) => {
        if (wanted !== resource) throw new Error('invalid_target');
        return { scope: 'tools:read', audience: wanted, accessTokenFormat: 'jwt', accessTokenTTL: life };
      },
    },
  },
});
for (const event of ['grant.error', 'grant.success', 'server_error']) {
  provider.on(event, (context, error) => {
    console.log(JSON.stringify({
      event, grant: context.oidc?.params?.grant_type, error: error?.error ?? null, detail: error?.error_description ?? null,
    }));
  });
}
provider.listen(port, '127.0.0.1', () => console.log(JSON.stringify({ event: 'up' })));
