package oauth

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

var (
	ecKey256, ecKey384, ecKey521 = newEC(elliptic.P256()), newEC(elliptic.P384()), newEC(elliptic.P521())

	edKey = func() ed25519.PrivateKey {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			panic(err)
		}
		return key
	}()

	// makeRSA generates the key once, because that is slow.
	makeRSA = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, minRSA) })
)

func newEC(curve elliptic.Curve) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := makeRSA()
	heraldtest.Must(t, err)
	return key
}

func pkcs8(t testing.TB, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	heraldtest.Must(t, err)
	return encodePEM("PRIVATE KEY", der)
}

func sec1(t testing.TB, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	heraldtest.Must(t, err)
	return encodePEM("EC PARAMETERS", []byte{6, 0}) + encodePEM("EC PRIVATE KEY", der)
}

func pkcs1(key *rsa.PrivateKey) string {
	return encodePEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

func encodePEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestCredential(t *testing.T) {
	t.Parallel()
	key := pkcs8(t, ecKey256)
	weak, err := ecdh.X25519().GenerateKey(rand.Reader)
	heraldtest.Must(t, err)
	short, err := rsa.GenerateKey(rand.Reader, minRSA/2)
	heraldtest.Must(t, err)
	for name, tt := range map[string]struct {
		cred    Credential
		problem string
	}{
		"basic":               {basicCredential(), ""},
		"refresh":             {refreshCredential(), ""},
		"no refresh token":    {Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone}, ""},
		"everything":          {Credential{Grant: GrantRefreshToken, ClientID: "https://us.example/client.json", Method: MethodKey, Key: secret.New(key), KeyID: "1", Algorithm: "ES256", RefreshToken: secret.New("r"), Resource: "https://a.example/mcp?x=1", Scope: "a b"}, ""},
		"letters":             {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodPost, Secret: secret.New("gehéim ☂")}, ""},
		"no grant":            {Credential{ClientID: "us", Method: MethodNone}, "its grant is neither"},
		"password":            {Credential{Grant: "password", ClientID: "us", Method: MethodNone}, "its grant is neither"},
		"public":              {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodNone}, "need a secret or a key"},
		"both grants":         {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodPost, Secret: secret.New("s"), RefreshToken: secret.New("r")}, "have no refresh token"},
		"no client":           {Credential{Grant: GrantRefreshToken, Method: MethodNone}, "no client id"},
		"client of two lines": {Credential{Grant: GrantRefreshToken, ClientID: "us\n", Method: MethodNone}, "its client id"},
		"no method":           {Credential{Grant: GrantRefreshToken, ClientID: "us"}, "its method is not"},
		"no secret":           {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic}, "the client secret is empty"},
		"secret of two lines": {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New("s3cret\n")}, "more than one line"},
		"secret too long":     {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New(strings.Repeat("a", maxSecret+1))}, "is longer than"},
		"secret no UTF-8":     {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New("s3cret\xff")}, "control characters"},
		"secret and none":     {Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone, Secret: secret.New("s3cret")}, "a secret goes with"},
		"secret and key":      {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Secret: secret.New("s3cret"), Key: secret.New(key)}, "a secret goes with"},
		"key and secret":      {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New("s3cret"), Key: secret.New(key)}, "goes with private_key_jwt only"},
		"key id and secret":   {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New("s3cret"), KeyID: "1"}, "goes with private_key_jwt only"},
		"no key":              {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey}, "no private key in PEM"},
		"key no PEM":          {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New("s3cret")}, "no private key in PEM"},
		"public key":          {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(encodePEM("PUBLIC KEY", []byte{1}))}, "no private key in PEM"},
		"key is junk":         {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(encodePEM("PRIVATE KEY", []byte("s3cret")))}, "the key cannot be read"},
		"encrypted":           {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(encodePEM("ENCRYPTED PRIVATE KEY", []byte{1}))}, "encrypted with a passphrase"},
		"key too long":        {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(strings.Repeat("a", maxSecret+1))}, "the key is longer"},
		"not for signing":     {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(pkcs8(t, weak))}, "the key is of a kind|the key cannot be read"},
		"P-224":               {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(pkcs8(t, newEC(elliptic.P224())))}, "the key's curve"},
		"short RSA":           {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(pkcs1(short))}, "less than 2048 bits"},
		"another algorithm":   {Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(key), Algorithm: "RS256"}, `signs by ES256 and not by "RS256"`},
		"resource":            {Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone, Resource: "a.example"}, "its resource is no http"},
		"scope":               {Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone, Scope: "a  b"}, "its scope"},
		"scope, long":         {Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone, Scope: strings.Repeat("a", maxScope+1)}, "its scope"},
	} {
		err := tt.cred.Check()
		plain, marshalErr := tt.cred.Marshal()
		wantNoSecrets(t, err, "s3cret")
		if tt.problem != "" {
			if err == nil || marshalErr == nil || !saysOne(err, tt.problem) {
				t.Errorf("%s: %v, %v", name, err, marshalErr)
			}
			continue
		}
		if err != nil || marshalErr != nil {
			t.Errorf("%s: %v, %v", name, err, marshalErr)
			continue
		}
		got, err := ParseCredential(plain)
		if err != nil || !sameCredential(got, tt.cred) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		for _, s := range []secret.Secret{tt.cred.Secret, tt.cred.Key, tt.cred.RefreshToken} {
			raw, jsonErr := json.Marshal(tt.cred)
			if text := fmt.Sprintf("%v %+v %#v %s", tt.cred, tt.cred, &tt.cred, raw); jsonErr != nil || len(s.Reveal()) > 1 && strings.Contains(text, s.Reveal()) {
				t.Errorf("%s: prints a secret", name)
			}
		}
	}
}

// saysOne reports whether the error contains one of the clauses.
func saysOne(err error, clauses string) bool {
	for _, c := range strings.Split(clauses, "|") {
		if strings.Contains(err.Error(), c) {
			return true
		}
	}
	return false
}

// sameCredential compares all fields, with their secrets revealed.
func sameCredential(a, b Credential) bool {
	open := func(c Credential) storedCredential {
		s := storedCredential{c, c.Secret.Reveal(), c.Key.Reveal(), c.RefreshToken.Reveal()}
		s.Credential.Secret, s.Credential.Key, s.Credential.RefreshToken = secret.Secret{}, secret.Secret{}, secret.Secret{}
		return s
	}
	return reflect.DeepEqual(open(a), open(b))
}

func TestParseCredentialRefuses(t *testing.T) {
	t.Parallel()
	const ok = `"grant":"refresh_token","client_id":"us","method":"none"`
	for name, text := range map[string]string{
		"nothing": "", "no JSON": "s3cret", "list": "[]", "more": "{" + ok + "} s3cret", "twice": "{" + ok + `,"grant":"refresh_token"}`,
		"another name": "{" + ok + `,"s3cret":"s3cret"}`, "case": "{" + ok + `,"Secret":"s3cret"}`, "number": "{" + ok + `,"secret":7}`, "null": "{" + ok + `,"secret":null}`,
		"not usable": `{"grant":"s3cret","client_id":"us","method":"none"}`, "long": "{" + ok + "}" + strings.Repeat(" ", maxStored),
		"deep": "{" + ok + `,"secret":` + nestLists(100) + `}`,
	} {
		got, err := ParseCredential([]byte(text))
		if err == nil || !reflect.DeepEqual(got, Credential{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		wantNoSecrets(t, err, "s3cret")
	}
	_, err := ParseCredential([]byte("{" + ok + "}"))
	heraldtest.Must(t, err)
}
