package oauth

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// Server is an authorization server as described by its metadata (RFC 8414).
type Server struct {
	Issuer                string
	TokenEndpoint         string // never empty
	AuthorizationEndpoint string // may be empty
	RegistrationEndpoint  string // may be empty
	RevocationEndpoint    string // may be empty; not validated until Revoke uses it
	// AuthMethods is token_endpoint_auth_methods_supported. Empty: not specified, which means client_secret_basic.
	AuthMethods      []string
	Algorithms       []string // token_endpoint_auth_signing_alg_values_supported; empty: not specified
	Challenges       []string // code_challenge_methods_supported
	Scopes           []string // scopes_supported
	Grants           []string // grant_types_supported; empty: not specified
	IssParameter     bool     // authorization_response_iss_parameter_supported (RFC 9207)
	ClientIDMetadata bool     // client_id_metadata_document_supported
	Legacy           bool     // there is no metadata: the endpoints are those of MCP 2025-03-26
}

// Server reads the metadata of an authorization server. It tries RFC 8414, then OpenID Connect Discovery with the
// issuer's path after the well-known name, then with the path before it. It returns *IssuerError unless the document's
// issuer is the same (SameIssuer). Server.Issuer has the document's spelling. Other errors are *MetadataError and
// *UnavailableError.
func (c *Client) Server(ctx context.Context, issuer string) (Server, error) {
	u, err := parseIssuer(issuer)
	if err != nil {
		return Server{}, &MetadataError{URL: excerpt(issuer, maxText), Problem: "the issuer " + err.Error()}
	}
	const openID = "openid-configuration"
	origin, path := originOf(u), strings.TrimRight(u.EscapedPath(), "/")
	addresses := []string{wellKnownURL(origin, "oauth-authorization-server", path), wellKnownURL(origin, openID, path)}
	if path != "" {
		addresses = append(addresses, wellKnownURL(origin+path, openID, ""))
	}
	o, err := c.fetchDocument(ctx, issuer, addresses)
	if err != nil {
		return Server{}, err
	}
	s, err := readServer(o)
	switch {
	case err != nil:
		return Server{}, &MetadataError{URL: issuer, Problem: err.Error()}
	case !SameIssuer(s.Issuer, issuer):
		return Server{}, &IssuerError{Pinned: issuer, Named: excerptIssuers(s.Issuer)}
	}
	return s, nil
}

// SameIssuer reports whether two issuers are equal, apart from one final slash. Both spellings name the same document,
// because its address omits that slash (RFC 8414 §3.1). Agents often add the slash to the issuer of another server.
func SameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// readServer parses a server's document. Its errors are clauses.
func readServer(o object) (s Server, err error) {
	if s.Issuer, err = o.getText("issuer", maxURL); err != nil {
		return Server{}, err
	}
	if s.Issuer == "" {
		return Server{}, errors.New("it names no issuer")
	}
	for name, to := range map[string]*string{"token_endpoint": &s.TokenEndpoint,
		"authorization_endpoint": &s.AuthorizationEndpoint,
		"registration_endpoint":  &s.RegistrationEndpoint} {
		if *to, err = o.getText(name, maxURL); err != nil {
			return Server{}, err
		}
		if *to == "" {
			continue
		}
		if _, err := parseEndpoint(*to); err != nil {
			return Server{}, errors.New("its " + name + " " + err.Error())
		}
	}
	if s.TokenEndpoint == "" {
		return Server{}, errors.New("it names no token endpoint")
	}
	for name, to := range map[string]*[]string{"token_endpoint_auth_methods_supported": &s.AuthMethods,
		"code_challenge_methods_supported":                 &s.Challenges,
		"token_endpoint_auth_signing_alg_values_supported": &s.Algorithms, "scopes_supported": &s.Scopes,
		"grant_types_supported": &s.Grants} {
		if *to, err = o.getTexts(name, maxNames, maxName); err != nil {
			return Server{}, err
		}
	}
	s.Scopes = splitScopes(s.Scopes)
	s.RevocationEndpoint, _ = o.getText("revocation_endpoint", maxURL)
	s.IssParameter = o.getFlag("authorization_response_iss_parameter_supported")
	s.ClientIDMetadata = o.getFlag("client_id_metadata_document_supported")
	return s, nil
}

// ServerOf reads the metadata of a resource's authorization server. issuer is the pinned server; if it is empty,
// ServerOf uses the first one that the resource names. If the resource does not name the pinned server, ServerOf
// returns *IssuerError without a request. For a Legacy resource without server metadata it returns LegacyServer. Other
// errors are those of Server.
func (c *Client) ServerOf(ctx context.Context, r Resource, issuer string) (Server, error) {
	_, named := r.FindIssuer(issuer)
	switch {
	case len(r.Issuers) == 0:
		return Server{}, &MetadataError{URL: excerpt(r.URL, maxText), Problem: "it names no authorization server"}
	case issuer == "":
		issuer = r.Issuers[0]
	case !named:
		return Server{}, &IssuerError{Pinned: issuer, Named: excerptIssuers(r.Issuers...)}
	}
	s, err := c.Server(ctx, issuer)
	var m *MetadataError
	if r.Legacy && errors.As(err, &m) && m.Missing {
		return LegacyServer(issuer)
	}
	return s, err
}

// LegacyServer returns the authorization server of an agent without metadata of either kind. MCP 2025-03-26 places it
// at the agent's origin and requires PKCE of it. LegacyServer makes no request. It returns *MetadataError if origin is
// not a valid https or loopback origin.
func LegacyServer(origin string) (Server, error) {
	u, err := parseIssuer(origin)
	if err == nil && u.EscapedPath() != "" {
		err = errors.New("holds a path")
	}
	if err != nil {
		return Server{}, &MetadataError{URL: excerpt(origin, maxText), Problem: "the agent's origin " + err.Error()}
	}
	return Server{Issuer: origin, TokenEndpoint: origin + "/token", AuthorizationEndpoint: origin + "/authorize",
		RegistrationEndpoint: origin + "/register",
		Challenges:           []string{challengeMethod}, Legacy: true}, nil
}

// reportProblem returns a MetadataError that explains why the server cannot be used.
func (s Server) reportProblem(problem string) error {
	return &MetadataError{URL: excerpt(s.Issuer, maxText), Problem: problem}
}

// Method selects the authentication method of a client that has a key, a secret or neither, if none was configured. It
// returns *MetadataError if the server supports none that fits.
func (s Server) Method(secret, key bool) (string, error) {
	fits := func(method string) bool { return slices.Contains(s.AuthMethods, method) }
	switch {
	case !key && !secret:
		return MethodNone, nil // servers accept public clients without listing the method
	case key && (len(s.AuthMethods) == 0 || fits(MethodKey)):
		return MethodKey, nil
	case secret && (len(s.AuthMethods) == 0 || fits(MethodBasic)):
		return MethodBasic, nil
	case secret && fits(MethodPost):
		return MethodPost, nil
	}
	return "", s.reportProblem("its token endpoint takes only " + excerpt(strings.Join(s.AuthMethods, ", "), maxText))
}
