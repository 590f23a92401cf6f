package ipfs

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
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

// TestNormalize covers every known form of a URI, except the contents of data URIs, which TestDataURI covers.
func TestNormalize(t *testing.T) {
	t.Parallel()
	const none, invalid, large = "none", "invalid", "large"
	for _, c := range []struct{ in, want string }{
		// ipfs in every spelling
		{"ipfs://" + v1, "ipfs://" + v1},
		{"ipfs://" + v0, "ipfs://" + v0},
		{"  ipfs://" + v1 + " \n", "ipfs://" + v1},
		{"\x00ipfs://" + v1 + "\x00", "ipfs://" + v1},
		{"\ufeffipfs://" + v1, "ipfs://" + v1},
		{"ipfs:" + v1, "ipfs://" + v1},
		{"IPFS://" + v0, "ipfs://" + v0},
		{"ipfs:///" + v1, "ipfs://" + v1},
		{"ipfs://ipfs/" + v1 + "/a.json", "ipfs://" + v1 + "/a.json"},
		{"ipfs://ipfs/ipfs/" + v1, "ipfs://" + v1},
		{"ipfs:///ipfs//IPFS/" + v1, "ipfs://" + v1},
		{"/ipfs/" + v1, "ipfs://" + v1},
		{"//ipfs/ipfs/" + v1, "ipfs://" + v1},
		{"IPFS/" + v0, "ipfs://" + v0},
		{"ipfs/" + v1 + "/x", "ipfs://" + v1 + "/x"},
		{v1, "ipfs://" + v1},
		{v0 + "/agent.json", "ipfs://" + v0 + "/agent.json"},
		{"BAFKREIGH2AKISCAILDCQABSYG3DFR6CHU3FGPREGIYMSCK7E7AQA4S52ZY", "ipfs://" + v1},
		{v1base36, "ipfs://" + v1},
		{strings.ToUpper(v1base36) + "/a", "ipfs://" + v1 + "/a"},
		{v1base58 + "?x", "ipfs://" + v1},
		{"ipfs://" + v1base36, "ipfs://" + v1},
		{"ipfs://" + v1base58, "ipfs://" + v1},
		{"IPFS:" + v1base58, "ipfs://" + v1},
		{"ipfs://" + v1 + "/a//b/", "ipfs://" + v1 + "/a/b"},
		{"ipfs://" + v1 + "/a.json?x=1#y", "ipfs://" + v1 + "/a.json"},
		{"ipfs://" + v1 + "/my%20file%2C.json", "ipfs://" + v1 + "/my%20file%2C.json"},
		{"ipfs://" + v1 + "/my file.json", "ipfs://" + v1 + "/my%20file.json"},
		{"ipfs://" + v1 + "/100%.json", "ipfs://" + v1 + "/100%25.json"},
		{"ipfs://" + v1 + "/%zz/%4", "ipfs://" + v1 + "/%25zz/%254"},
		{"ipfs://" + v1 + "/a%2Fb", "ipfs://" + v1 + "/a%2Fb"}, // one name, not two
		{"ipfs://" + v1 + "/%ff%00", "ipfs://" + v1 + "/%25ff%2500"},
		{"ipfs://" + v1 + "/a%252Fb", "ipfs://" + v1 + "/a%252Fb"}, // decoded once
		{"ipfs://" + v1 + "/{id}.json", "ipfs://" + v1 + "/%7Bid%7D.json"},
		{"ipfs://" + v1 + "?a=/../b", "ipfs://" + v1},
		{"ipfs://" + v1 + "#/../b", "ipfs://" + v1},
		{"ipfs://" + v1 + "/a/../b", invalid},
		{"ipfs://" + v1 + "/%2e%2E/b", invalid},
		{"ipfs://" + v1 + "/.", invalid},
		{"ipfs://0x1234", invalid},
		{"ipfs://0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", invalid},
		{"ipfs://undefined", invalid},
		{"ipfs://null/agent.json", invalid},
		{"ipfs://" + v1[:40], invalid},
		{"ipfs://" + v1 + "x", invalid},
		{"ipfs://" + strings.ToLower(v0), invalid},
		{"ipfs://", none},
		{"ipfs://hello", invalid},
		{"ipfs://" + v1 + strings.Repeat("/a", 40), invalid},
		{"ipfs://bafkqaaa", "ipfs://bafkqaaa"},
		// an insecure hash function (murmur3)
		{"ipfs://baeqrieceflkfpxdvxlfm", invalid},

		// ipns
		{"ipns://" + key + "/a", "ipns://" + key + "/a"},
		{"ipns://example.com", "ipns://example.com"},
		{"ipfs://ipns/example.com", "ipns://example.com"},
		{"/ipns/" + key, "ipns://" + key},
		{"IPNS:" + key, "ipns://" + key},
		{"ipns://ipns/" + key + "/a?b#c", "ipns://" + key + "/a"},
		{"ipns://ipfs/" + v1, "ipfs://" + v1},
		{"ipns/example.com/a", "ipns://example.com/a"},
		{"ipns://", none},
		{"ipns://example.com/..", invalid},

		// gateways
		{"https://gateway.pinata.cloud/ipfs/" + v0, "ipfs://" + v0},
		{"HTTPS://ipfs.io/ipfs/" + v1 + "/a%20b.json?pinataGatewayToken=s", "ipfs://" + v1 + "/a%20b.json"},
		{"http://127.0.0.1:8080/ipfs/" + v1, "ipfs://" + v1},
		{"https://" + v1 + ".ipfs.w3s.link/agent.json", "ipfs://" + v1 + "/agent.json"},
		{"https://" + strings.ToUpper(v1) + ".ipfs.w3s.link/", "ipfs://" + v1},
		{"https://ipfs.infura.io:5001/api/v0/cat?arg=" + v0, "ipfs://" + v0},
		{"https://ipfs.infura.io/api/v0/cat?arg=/ipfs/" + v0 + "/a", "ipfs://" + v0 + "/a"},
		{"https://ipfs.infura.io:5001/api/v0/cat?token=s&arg=" + v0 + "%2Fagent.json", "ipfs://" + v0 + "/agent.json"},
		{"https://ipfs.infura.io:5001/API/v0/cat/?arg=" + v0, "ipfs://" + v0},
		{"https://IPFS.IO/IPFS/" + v0 + "/", "ipfs://" + v0},
		{"https://ipfs.io/ipfs/ipfs/" + v0, "ipfs://" + v0},
		{"https://ipfs.io//ipfs/" + v1base36 + "#x", "ipfs://" + v1},
		{"https://user:pw@x.mypinata.cloud/ipfs/" + v0 + "/metadata.json?filename=a.json", "ipfs://" + v0 + "/metadata.json"},
		{"https://" + v1base36 + ".ipfs.dweb.link", "ipfs://" + v1},
		{"http://" + v1 + ".ipfs.localhost:8080/a", "ipfs://" + v1 + "/a"},
		{"https://ipfs.io/ipns/example.com/a", "ipns://example.com/a"},
		{"https://" + key + ".ipns.dweb.link/a", "ipns://" + key + "/a"},
		{"https://ipfs.io/ipfs/0x1234", "https://ipfs.io/ipfs/0x1234"},
		{"https://ipfs.io/api/v0/cat?arg=undefined", "https://ipfs.io/api/v0/cat?arg=undefined"},
		{"https://x.ipfs.nftstorage.link/", "https://x.ipfs.nftstorage.link/"},
		{"https://dweb.link/ipns/" + key, "ipns://" + key},
		{"https://en-wikipedia--on--ipfs-org.ipns.dweb.link/x", "ipns://en.wikipedia-on-ipfs.org/x"},
		{"https://host.test/ipfs/not-a-cid", "https://host.test/ipfs/not-a-cid"},
		{"https://host.test/ipns/v1/agent.json", "https://host.test/ipns/v1/agent.json"},
		{"https://agents.ipns.host.test/7.json", "https://agents.ipns.host.test/7.json"},
		{"https://docs.ipfs.tech/x", "https://docs.ipfs.tech/x"},

		// the web
		{"https://host.test/agent.json?id=1#frag", "https://host.test/agent.json?id=1"},
		{" https://claudy.world/mcp ", "https://claudy.world/mcp"},
		{"HTTP://host.test/a b", "http://host.test/a%20b"},
		{"https://agents.8004.dev/{id}.json", "https://agents.8004.dev/%7Bid%7D.json"},
		{"https://h/agents/{agentId}/card", "https://h/agents/%7BagentId%7D/card"},
		{"\thttps://h/a\r\n\x00", "https://h/a"},
		{"https:///agent.json", none},
		{"https:agent.json", none},
		{"https", none},
		{"http:/", none},
		{"https://h:port/", invalid},
		{"https://[fe80::1%25lo]/x", "https://[fe80::1%25lo]/x"}, // the guard will refuse it
		{"https://[::1", invalid},
		{"https://", none},
		{"https://exa mple.com/", invalid},
		{"https://example.com/%zz", invalid},
		{"https://example.com/a\x00b", none},
		{"https://user:pw@host.test/", "https://user:pw@host.test/"}, // the guard will refuse it

		// arweave
		{"ar://abc-123_X", "ar://abc-123_X"},
		{"ar://abc/agent.json?x", "ar://abc/agent.json"},
		{"ar://", none},
		{"ar://abc/../../x", invalid},

		// no document
		{"", none},
		{" \t ", none},
		{"0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", none},
		{"undefined/agent.json", none},
		{"my agent", none},
		{"hello", none},
		{"backpacks", none},
		{"\x00", none},
		{"\u200b\ufeff", none},
		{"0x", none},
		{"undefined", none},
		{"null", none},
		{"N/A", none},
		{"-", none},
		{"ipfs", none},
		{"Qm", none},
		{"data", none},
		{"代理人", none},
		{"agent.json", none},
		{"./agent.json", none},
		{"www.example.com/agent.json", none},
		{"https://example.com/agent.json", none},
		{"https://api.EXAMPLE.org./agent.json", none},
		{"https://your-domain.example/agent.json", none},
		{"https://notexample.com/a", "https://notexample.com/a"},
		{"localhost:8080/agent.json", none},
		{"did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", none},
		{"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", none},
		{"ens:vitalik.eth", none},
		{"mailto:a@example.com", none},
		{"ipld://" + v1, none},
		{"bzz://" + v1, none},
		{":" + v1, none},
		{"Qm" + strings.Repeat("0", 44), none}, // base58 has no character 0
		{"baby agent of mine", none},
		{"did:web:example.com", none},
		{"web3://0x1234/x", none},
		{"eip155:1:0x00", none},
		{"vitalik.eth", none},
		{"ftp://example.com/x", none},
		{"file:///etc/passwd", none},
		{"javascript:alert(1)", none},
		{"https://example.com/" + strings.Repeat("x", 9000), none},
		{"a\u202eb://x", none},
		{"[1]", none},

		// inline
		{`{"name":"a"}`, "data:"},
		{"  {\"name\":\"a\"}\n", "data:"},
		{"{" + strings.Repeat("x", 2000), large},
		{"{", "data:"}, // the reader of the document decides whether it is JSON
		{"\ufeff{\"name\":\"a\"}\x00", "data:"},
		{"data:,x", "data:"},
		{" data:application/json;base64,e30= ", "data:"},
		{"data:application/json;base64," + strings.Repeat("A", 9000), large},
		{"data:nothing", invalid},
		{"DATA:application/json,{}", "data:"},
	} {
		ref, err := parseReference(c.in, 1024)
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
		default:
			got = ref.uri()
		}
		if got != c.want {
			t.Errorf("%.80q: %s (%v), want %s", c.in, got, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "pw@") || len(err.Error()) > 600) {
			t.Errorf("%.80q: message %q", c.in, err)
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
				if _, ok := errors.AsType[*TooLargeError](err); !ok {
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

// TestGzipBomb decodes 64 MiB that are compressed into 65 KB.
func TestGzipBomb(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	// The second and each later MiB of zeros compress into the same bytes, so they are compressed only once.
	var out bytes.Buffer
	w, zeros := gzip.NewWriter(&out), make([]byte, 1<<20)
	var at [2]int
	for i := range at {
		_, err := w.Write(zeros)
		heraldtest.Must(t, errors.Join(err, w.Flush()))
		at[i] = out.Len()
	}
	bomb := append(bytes.Clone(out.Bytes()), bytes.Repeat(out.Bytes()[at[0]:], 62)...)
	if len(bomb) > 70_000 {
		t.Fatalf("%d bytes", len(bomb))
	}
	z, err := gzip.NewReader(bytes.NewReader(bomb))
	heraldtest.Must(t, err)
	if n, err := io.Copy(io.Discard, z); n != 64<<20 || !errors.Is(err, io.ErrUnexpectedEOF) { // the stream has no end
		t.Fatalf("%d bytes, %v", n, err)
	}
	for _, uri := range []string{
		"data:application/json;enc=gzip;base64," + base64.StdEncoding.EncodeToString(bomb),
		"data:application/json;base64," + base64.RawURLEncoding.EncodeToString(bomb),
	} {
		var large *TooLargeError
		if _, err := parseReference(uri, limit); !errors.As(err, &large) || large.Limit != limit {
			t.Errorf("%v", err)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{
		"ipfs://" + v1 + "/a%20b", v0, "https://" + v1 + ".ipfs.w3s.link/x", "https://h/api/v0/cat?arg=" + v0,
		"ipns://" + key, "ar://x/y", "data:;base64,e30=", "{}", "0x00", "ipfs://" + v1 + "/../x", "https://a-b--c.ipns.h.x/y",
		"ipfs://bafkqaaa/\xff", "data:;base64 {}",
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
		if ref.source != SourceCID {
			return
		}
		// The normalized spelling parses to the same reference.
		again, err := parseReference(ref.uri(), limit)
		if err != nil || !again.cid.Equals(ref.cid) || len(again.segments) != len(ref.segments) {
			t.Errorf("%q became %q, which reads differently: %v", s, ref.uri(), err)
		}
	})
}

func FuzzDataURI(f *testing.F) {
	f.Add("application/json;base64,e30=")
	f.Add("application/json;base64 {}")
	f.Add(";enc=gzip;base64," + base64.StdEncoding.EncodeToString(Zip(f, []byte("{}"))))
	f.Add(",%7B%7d%")
	f.Fuzz(func(t *testing.T, s string) {
		const limit = 4096
		b, media, err := decodeData(s, limit)
		if err == nil && (len(b) > limit || len(media) > 700) {
			t.Errorf("%d bytes, media type %q", len(b), media)
		}
	})
}
