package ipfs

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	v0  = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
	v1  = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
	key = "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8"

	// v1 in base36 and base58
	v1base36 = "k2cwuedmosc65hhh0bee97q5jx3fe55tiyqzep8vgds83agps9dof3da"
	v1base58 = "zb2rhk6GMPQF3hfzwXTaNYFLKomMeC6UXdUt6jZKPpeVirLtV"
)

// TestNormalize covers every known form of a URI, by its normalized form, except the contents of data URIs, which
// TestDataURI covers.
func TestNormalize(t *testing.T) {
	t.Parallel()
	const none, invalid, large, unchanged = "none", "invalid", "large", "unchanged"
	for want, spellings := range map[string][]string{
		"ipfs://" + v1: {
			"  ipfs://" + v1 + " \n", "\x00ipfs://" + v1 + "\x00", "\ufeffipfs://" + v1, "ipfs:" + v1,
			"ipfs:///" + v1, "ipfs://ipfs/ipfs/" + v1, "ipfs:///ipfs//IPFS/" + v1, "/ipfs/" + v1, "//ipfs/ipfs/" + v1,
			v1, "BAFKREIGH2AKISCAILDCQABSYG3DFR6CHU3FGPREGIYMSCK7E7AQA4S52ZY", v1base36, v1base58 + "?x",
			"ipfs://" + v1base36, "ipfs://" + v1base58, "IPFS:" + v1base58, "ipfs://" + v1 + "?a=/../b",
			"ipfs://" + v1 + "#/../b", "ipns://ipfs/" + v1, "http://127.0.0.1:8080/ipfs/" + v1,
			"https://" + strings.ToUpper(v1) + ".ipfs.w3s.link/", "https://ipfs.io//ipfs/" + v1base36 + "#x",
			"https://" + v1base36 + ".ipfs.dweb.link",
		},
		"ipfs://" + v0: {
			"IPFS://" + v0, "IPFS/" + v0, "https://gateway.pinata.cloud/ipfs/" + v0,
			"https://ipfs.infura.io:5001/api/v0/cat?arg=" + v0, "https://ipfs.infura.io:5001/API/v0/cat/?arg=" + v0,
			"https://IPFS.IO/IPFS/" + v0 + "/", "https://ipfs.io/ipfs/ipfs/" + v0,
		},
		"ipfs://" + v1 + "/a.json": {"ipfs://ipfs/" + v1 + "/a.json", "ipfs://" + v1 + "/a.json?x=1#y"},
		"ipfs://" + v1 + "/x":      {"ipfs/" + v1 + "/x"},
		"ipfs://" + v0 + "/agent.json": {
			v0 + "/agent.json", "https://ipfs.infura.io:5001/api/v0/cat?token=s&arg=" + v0 + "%2Fagent.json",
		},
		"ipfs://" + v1 + "/a":                   {strings.ToUpper(v1base36) + "/a", "http://" + v1 + ".ipfs.localhost:8080/a"},
		"ipfs://" + v1 + "/a/b":                 {"ipfs://" + v1 + "/a//b/"},
		"ipfs://" + v1 + "/my%20file.json":      {"ipfs://" + v1 + "/my file.json"},
		"ipfs://" + v1 + "/100%25.json":         {"ipfs://" + v1 + "/100%.json"},
		"ipfs://" + v1 + "/%25zz/%254":          {"ipfs://" + v1 + "/%zz/%4"},
		"ipfs://" + v1 + "/%25ff%2500":          {"ipfs://" + v1 + "/%ff%00"},
		"ipfs://" + v1 + "/%7Bid%7D.json":       {"ipfs://" + v1 + "/{id}.json"},
		"ipns://example.com":                    {"ipfs://ipns/example.com"},
		"ipns://" + key:                         {"/ipns/" + key, "IPNS:" + key, "https://dweb.link/ipns/" + key},
		"ipns://" + key + "/a":                  {"ipns://ipns/" + key + "/a?b#c", "https://" + key + ".ipns.dweb.link/a"},
		"ipns://example.com/a":                  {"ipns/example.com/a", "https://ipfs.io/ipns/example.com/a"},
		"ipfs://" + v1 + "/a%20b.json":          {"HTTPS://ipfs.io/ipfs/" + v1 + "/a%20b.json?pinataGatewayToken=s"},
		"ipfs://" + v1 + "/agent.json":          {"https://" + v1 + ".ipfs.w3s.link/agent.json"},
		"ipfs://" + v0 + "/a":                   {"https://ipfs.infura.io/api/v0/cat?arg=/ipfs/" + v0 + "/a"},
		"ipfs://" + v0 + "/metadata.json":       {"https://user:pw@x.mypinata.cloud/ipfs/" + v0 + "/metadata.json?filename=a.json"},
		"ipns://en.wikipedia-on-ipfs.org/x":     {"https://en-wikipedia--on--ipfs-org.ipns.dweb.link/x"},
		"https://host.test/agent.json?id=1":     {"https://host.test/agent.json?id=1#frag"},
		"https://claudy.world/mcp":              {" https://claudy.world/mcp "},
		"http://host.test/a%20b":                {"HTTP://host.test/a b"},
		"https://agents.8004.dev/%7Bid%7D.json": {"https://agents.8004.dev/{id}.json"},
		"https://h/agents/%7BagentId%7D/card":   {"https://h/agents/{agentId}/card"},
		"https://h/a":                           {"\thttps://h/a\r\n\x00"},
		"ar://abc/agent.json":                   {"ar://abc/agent.json?x"},
		unchanged: {
			"ipfs://" + v1, "ipfs://" + v0, "ipfs://" + v1 + "/my%20file%2C.json",
			"ipfs://" + v1 + "/a%2Fb",   // one name, not two
			"ipfs://" + v1 + "/a%252Fb", // decoded once
			"ipfs://bafkqaaa", "ipns://" + key + "/a", "ipns://example.com", "https://ipfs.io/ipfs/0x1234",
			"https://ipfs.io/api/v0/cat?arg=undefined", "https://x.ipfs.nftstorage.link/",
			"https://host.test/ipfs/not-a-cid", "https://host.test/ipns/v1/agent.json",
			"https://agents.ipns.host.test/7.json", "https://docs.ipfs.tech/x",
			"https://[fe80::1%25lo]/x",   // the guard will refuse it
			"https://user:pw@host.test/", // the guard will refuse it
			"ar://abc-123_X", "https://notexample.com/a",
		},
		"data:": {
			`{"name":"a"}`, "  {\"name\":\"a\"}\n",
			"{", // the reader of the document decides whether it is JSON
			"\ufeff{\"name\":\"a\"}\x00", "data:,x", " data:application/json;base64,e30= ",
			"DATA:application/json,{}",
		},
		invalid: {
			"ipfs://" + v1 + "/a/../b", "ipfs://" + v1 + "/%2e%2E/b", "ipfs://" + v1 + "/.", "ipfs://0x1234",
			"ipfs://0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "ipfs://undefined", "ipfs://null/agent.json",
			"ipfs://" + v1[:40], "ipfs://" + v1 + "x", "ipfs://" + strings.ToLower(v0), "ipfs://hello",
			"ipfs://" + v1 + strings.Repeat("/a", 40),
			"ipfs://baeqrieceflkfpxdvxlfm", // an insecure hash function (murmur3)
			"ipns://example.com/..", "https://h:port/", "https://[::1", "https://exa mple.com/",
			"https://example.com/%zz", "ar://abc/../../x", "data:nothing",
		},
		large: {"{" + strings.Repeat("x", 2000), "data:application/json;base64," + strings.Repeat("A", 9000)},
		none: {
			"ipfs://", "ipns://", "https:///agent.json", "https:agent.json", "https", "http:/", "https://",
			"https://example.com/a\x00b", "ar://", "", " \t ", "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432",
			"undefined/agent.json", "my agent", "hello", "backpacks", "\x00", "\u200b\ufeff", "0x", "undefined",
			"null", "N/A", "-", "ipfs", "Qm", "data", "代理人", "agent.json", "./agent.json",
			"www.example.com/agent.json", "https://example.com/agent.json", "https://api.EXAMPLE.org./agent.json",
			"https://your-domain.example/agent.json", "localhost:8080/agent.json",
			"did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",
			"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "ens:vitalik.eth", "mailto:a@example.com",
			"ipld://" + v1, "bzz://" + v1, ":" + v1,
			"Qm" + strings.Repeat("0", 44), // base58 has no character 0
			"baby agent of mine", "did:web:example.com", "web3://0x1234/x", "eip155:1:0x00", "vitalik.eth",
			"ftp://example.com/x", "file:///etc/passwd", "javascript:alert(1)",
			"https://example.com/" + strings.Repeat("x", 9000), "a\u202eb://x", "[1]",
		},
	} {
		for _, in := range spellings {
			ref, err := parseReference(in, 1024)
			got := ""
			switch {
			case errors.As(err, new(*NoDocumentError)):
				got = none
			case errors.As(err, new(*InvalidError)):
				got = invalid
			case errors.As(err, new(*TooLargeError)):
				got = large
			case err != nil:
				got = err.Error()
			case ref.uri() == in:
				got = unchanged
			default:
				got = ref.uri()
			}
			if got != want {
				t.Errorf("%.80q: %s (%v), want %s", in, got, err, want)
			}
			if err != nil && (strings.Contains(err.Error(), "pw@") || len(err.Error()) > 600) {
				t.Errorf("%.80q: message %q", in, err)
			}
		}
	}
}

func TestShownHidesSecrets(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"https://u:secret@host.test/x?token=secret", "https://host.test/ipfs/" + v1 + "?t=secret"} {
		ref, err := parseReference(in, 1024)
		heraldtest.Must(t, err)
		heraldtest.Lacks(t, "what is shown", ref.shown, "secret")
	}
}

// Zip compresses b. The tests of package ipfs_test call it too.
func Zip(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	heraldtest.Must(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

func TestDataURI(t *testing.T) {
	t.Parallel()
	const doc = `{"name":"Ünï?>~","x":"a+b/c"}`
	std := base64.StdEncoding.EncodeToString([]byte(doc))
	urlSafe := base64.URLEncoding.EncodeToString([]byte(doc))
	zipped := base64.StdEncoding.EncodeToString(Zip(t, []byte(doc)))
	bomb := base64.StdEncoding.EncodeToString(Zip(t, make([]byte, 8<<20)))
	if !strings.ContainsAny(urlSafe, "-_") || !strings.Contains(std, "=") {
		t.Fatal("the sample does not exercise the alphabets")
	}
	const invalid, large = "invalid", "large"
	for name, c := range map[string]struct{ in, want, media string }{
		"spec":                   {"application/json;base64," + std, doc, "application/json"},
		"charset":                {"application/json;charset=utf-8;base64," + std, doc, "application/json"},
		"upper case":             {"Application/JSON;BASE64," + std, doc, "application/json"},
		"url alphabet":           {"application/json;base64," + urlSafe, doc, ""},
		"no padding":             {"application/json;base64," + strings.TrimRight(std, "="), doc, ""},
		"white space":            {"application/json;base64, " + std[:8] + "\n " + std[8:] + "\r\n", doc, ""},
		"escaped padding":        {"application/json;base64," + strings.ReplaceAll(std, "=", "%3D"), doc, ""},
		"escaped all":            {"application/json;base64," + url.QueryEscape(std), doc, ""},
		"plain JSON":             {"application/json;base64," + doc, doc, ""},
		"plain, escaped":         {"application/json;base64," + url.PathEscape(doc), doc, ""},
		"space for comma":        {"application/json;base64 " + std, doc, "application/json"},
		"space and JSON":         {`application/json;base64 {"a":1,"b":2}`, `{"a":1,"b":2}`, ""},
		"no media type":          {";base64," + std, doc, "text/plain"},
		"percent":                {"application/json," + url.PathEscape(doc), doc, ""},
		"utf8":                   {"application/json;utf8," + doc, doc, ""},
		"raw":                    {"application/json," + doc, doc, ""},
		"stray percent":          {`application/json,{"a":"100%, 5%zz %41"}`, `{"a":"100%, 5%zz A"}`, ""},
		"plus stays":             {`application/json,{"a":"1+1"}`, `{"a":"1+1"}`, ""},
		"gzip":                   {"application/json;enc=gzip;base64," + zipped, doc, ""},
		"gzip level":             {"application/json;enc=gzip;level=6;base64," + zipped, doc, ""},
		"gzip by magic":          {"application/json;base64," + zipped, doc, ""},
		"gzip, plain":            {"application/json;enc=gzip,{}", "{}", ""},
		"empty":                  {",", "", "text/plain"},
		"empty base64":           {";base64,", "", ""},
		"label in the middle":    {"application/json;base64;charset=utf-8," + std, doc, "application/json"},
		"charset, percent":       {"application/json;charset=UTF-8," + url.PathEscape(doc), doc, "application/json"},
		"url alphabet, bare":     {"application/json;base64," + base64.RawURLEncoding.EncodeToString([]byte(doc)), doc, ""},
		"tabs and lines":         {"application/json;base64,\r\n\t" + std[:5] + "\t" + std[5:9] + "\v\f" + std[9:], doc, ""},
		"lower-case escape":      {"application/json;base64," + strings.ReplaceAll(std, "=", "%3d"), doc, ""},
		"escaped space":          {"application/json;base64," + std[:4] + "%20%0A" + std[4:], doc, ""},
		"too much padding":       {"application/json;base64," + strings.TrimRight(std, "=") + "====", doc, ""},
		"plain JSON, indented":   {"application/json;base64,\n  " + doc, "\n  " + doc, ""},
		"plain JSON with BOM":    {"application/json;base64,\ufeff{}", "\ufeff{}", ""},
		"upper, space for comma": {"application/json;BASE64 " + std, doc, "application/json"},
		"BOM stays":              {"application/json,%EF%BB%BF{}", "\ufeff{}", ""},
		"newline stays":          {"application/json,{}%0A", "{}\n", ""},
		"utf8 and escapes":       {"application/json;utf8,%7B%22a%22:1}", `{"a":1}`, ""},
		"commas in the body":     {`application/json,{"a":1,"b":[2,3]}`, `{"a":1,"b":[2,3]}`, ""},
		"ENC=GZIP":               {"application/json;ENC=GZIP;BASE64," + zipped, doc, ""},
		"gzip, url alphabet":     {"application/json;enc=gzip;base64," + base64.RawURLEncoding.EncodeToString(Zip(t, []byte(doc))), doc, ""},
		"gzip in escapes":        {"application/json;enc=gzip," + url.PathEscape(string(Zip(t, []byte(doc)))), doc, ""},
		"gzip that is not":       {"application/json;enc=gzip;base64," + std, doc, ""},
		"gzip and noise":         {"application/json;enc=gzip;base64,AAECAwQF", invalid, ""},
		"zstd":                   {"application/json;enc=zstd;base64,KLUv/SAA", invalid, ""},
		"deflate":                {"application/json;enc=deflate;base64,eJyrrgUAAXUA+Q==", invalid, ""},
		"any media type":         {"image/png;base64,iVBORw0KGgo=", "\x89PNG\r\n\x1a\n", "image/png"},
		"odd base64":             {";base64,abcde", invalid, ""},
		"bad base64":             {";base64,!!!!", invalid, ""},
		"no comma":               {"application/json", invalid, ""},
		"long header":            {strings.Repeat(";", 5000) + ",x", invalid, ""},
		"brotli":                 {"application/json;enc=br;base64," + std[1:], invalid, ""},
		"cut gzip":               {";base64," + zipped[:24], invalid, ""},
		"bomb":                   {";base64," + bomb, large, ""},
		"labelled bomb":          {"application/json;enc=gzip;base64," + bomb, large, ""},
		"long":                   {"," + strings.Repeat("x", 5000), large, ""},
		"very long":              {"," + strings.Repeat("x", 50000), large, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, media, err := decodeData(c.in, 4096)
			switch c.want {
			case invalid:
				if _, ok := errors.AsType[*InvalidError](err); !ok {
					t.Fatalf("%q, %v; want an InvalidError", got, err)
				}
			case large:
				if e, ok := errors.AsType[*TooLargeError](err); !ok || e.Limit != 4096 {
					t.Fatalf("%d bytes, %v; want a TooLargeError", len(got), err)
				}
			default:
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the text", string(got), c.want)
				if c.media != "" && media != c.media {
					t.Errorf("media type %q", media)
				}
			}
		})
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{
		"ipfs://" + v1 + "/a%20b", v0, "https://" + v1 + ".ipfs.w3s.link/x", "https://h/api/v0/cat?arg=" + v0,
		"ipns://" + key, "ar://x/y", "data:;base64,e30=", "{}", "0x00", "ipfs://" + v1 + "/../x", "https://a-b--c.ipns.h.x/y",
		"ipfs://bafkqaaa/\xff", "data:;base64 {}", "HTTPS://u:pw@h.test/a b?q='#f",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		const limit = 4096
		ref, err := parseReference(s, limit)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			return
		}
		if len(ref.bytes) > limit {
			t.Errorf("%d bytes from a limit of %d", len(ref.bytes), limit)
		}
		for _, s := range ref.segments {
			if s.decoded == "" || s.decoded == "." || s.decoded == ".." {
				t.Errorf("segment %q", s.decoded)
			}
		}
		if ref.source == SourceData {
			return
		}
		// The normalized spelling parses to the same reference. A gateway's URL was rewritten.
		again, err := parseReference(ref.uri(), limit)
		if err != nil || again.source != ref.source || again.uri() != ref.uri() || len(again.segments) != len(ref.segments) {
			t.Errorf("%q became %q, which reads differently: %v", s, ref.uri(), err)
		}
		if ref.web != nil && (ref.web.Fragment != "" || ref.web.Host == "" || ref.web.User != nil && strings.HasPrefix(ref.shown, ref.web.Scheme+"://"+ref.web.User.String()+"@")) {
			t.Errorf("%q is fetched as %q and shown as %q", s, ref.web, ref.shown)
		}
	})
}

func FuzzDataURI(f *testing.F) {
	f.Add("application/json;base64,e30=")
	f.Add("application/json;base64 {}")
	f.Add(";enc=gzip;base64," + base64.StdEncoding.EncodeToString(Zip(f, []byte("{}"))))
	f.Add(",%7B%7d%")
	f.Add("\xfb\xff%,") // in base64 it is -_8lLA or +/8lLA
	f.Fuzz(func(t *testing.T, s string) {
		const limit = 4096
		b, media, err := decodeData(s, limit)
		if err == nil && (len(b) > limit || len(media) > 700) {
			t.Errorf("%d bytes, media type %q", len(b), media)
		}
		// Any bytes are the same after each encoding, except that gzip is decompressed.
		if len(s) > limit || strings.HasPrefix(s, "\x1f\x8b") {
			return
		}
		for _, encoded := range []string{";base64," + base64.StdEncoding.EncodeToString([]byte(s)), ";base64," + base64.RawURLEncoding.EncodeToString([]byte(s)), "," + url.PathEscape(s)} {
			if b, _, err := decodeData(encoded, limit); err != nil || string(b) != s {
				t.Errorf("%q became %q, %v", encoded, b, err)
			}
		}
	})
}
