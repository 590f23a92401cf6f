package erc8004

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

const prettyFile = `{
  "agentRegistry": "eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432",
  "agentId": 42,
  "clientAddress": "eip155:8453:0x1111111111111111111111111111111111111111",
  "createdAt": "2026-11-21T12:00:00Z",
  "value": 9977,
  "valueDecimals": 2,
  "tag1": "uptime",
  "mcp": {
    "tool": "get_price"
  },
  "text": "café"
}`

func TestVerifyHashVectors(t *testing.T) {
	t.Parallel()
	if len(prettyFile) != 330 {
		t.Fatalf("the file has %d bytes, the vectors are of one with 330", len(prettyFile))
	}
	for hash, want := range map[string]Verdict{
		"0xf740395540c4f958a62b2c6f1ad65de3e0bb36c01056ca2f03caa55ae5dba1e8": Raw,
		"0x40108495905043df8e84b0cbbe35980a471717123487386e1a43f0dd765abbb0": Compact,
		"0x45e3a8f463bdc34c030b7f5bd01fc06b66d77acf9341698635c9c4de08f4449f": Agent0Py,
		"0xe151ecd6a0ccefa6163d034957a0e6adf5b28efc9d58820934448fff1decffd9": Agent0TS,
		"0xdc1e062bb28387d8037e04f7051740de2312e3b1275787c9eb4c00e427f46b25": JCS,
		"0xd5d0e1aa033e09e86e414301765175e62cf3f140d238b7f3866f3091b7d33c9a": SHA256,
		"0x00": NotGiven,
		"0x01": Mismatch,
	} {
		heraldtest.Equal(t, hash, VerifyHash([]byte(prettyFile), common.HexToHash(hash), true), want)
	}
	// These files are other spellings of the same object. The verdict first compares the exact bytes; the other forms
	// do not depend on the spelling.
	const compact = `{"agentRegistry":"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432","agentId":42,"clientAddress":"eip155:8453:0x1111111111111111111111111111111111111111","createdAt":"2026-11-21T12:00:00Z","value":9977,"valueDecimals":2,"tag1":"uptime","mcp":{"tool":"get_price"},"text":"café"}`
	if len(compact) != 284 {
		t.Fatalf("the compact file has %d bytes, the vectors are of one with 284", len(compact))
	}
	escaped := strings.ReplaceAll(compact, "é", `\u00e9`)
	for _, file := range []string{compact, escaped, "\xef\xbb\xbf" + compact, "\n " + compact + "\r\n"} {
		for hash, want := range map[string]Verdict{
			"0xf740395540c4f958a62b2c6f1ad65de3e0bb36c01056ca2f03caa55ae5dba1e8": Mismatch, // the hash of the pretty bytes
			"0xd5d0e1aa033e09e86e414301765175e62cf3f140d238b7f3866f3091b7d33c9a": Mismatch,
			"0x40108495905043df8e84b0cbbe35980a471717123487386e1a43f0dd765abbb0": map[bool]Verdict{true: Raw, false: Compact}[file == compact],
			"0x45e3a8f463bdc34c030b7f5bd01fc06b66d77acf9341698635c9c4de08f4449f": Agent0Py,
			"0xe151ecd6a0ccefa6163d034957a0e6adf5b28efc9d58820934448fff1decffd9": Agent0TS,
			"0xdc1e062bb28387d8037e04f7051740de2312e3b1275787c9eb4c00e427f46b25": JCS,
			crypto.Keccak256Hash([]byte(file)).Hex():                             Raw,
		} {
			if got := VerifyHash([]byte(file), common.HexToHash(hash), true); got != want {
				t.Errorf("%.20q, %s: %s, want %s", file, hash, got, want)
			}
		}
	}
	empty := common.HexToHash("0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470")
	heraldtest.Equal(t, "the empty file", VerifyHash(nil, empty, true), Raw)
	// The hash of the empty file does not match a file with content, and a zero hash means that no hash was given.
	heraldtest.Equal(t, "the hash of nothing", VerifyHash([]byte(prettyFile), empty, true), Mismatch)
	heraldtest.Equal(t, "no hash of the empty file", VerifyHash(nil, common.Hash{}, true), NotGiven)
	heraldtest.Equal(t, "no JSON", VerifyHash([]byte("no JSON"), common.Hash{1}, true), Mismatch)
	heraldtest.Equal(t, "deep", VerifyHash([]byte(strings.Repeat("[", 1<<20)), common.Hash{1}, true), Mismatch)
}

// TestLargeFilesCountByTheirBytes: a file that would take a second to sort is not converted into another form. Its
// exact bytes are hashed at any size.
func TestLargeFilesCountByTheirBytes(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]Verdict{200 << 10: JCS, 300 << 10: Mismatch} {
		canonical := []byte(`{"a":"` + strings.Repeat("x", size) + `"}`)
		spaced := append([]byte(" "), canonical...)
		if got := VerifyHash(spaced, crypto.Keccak256Hash(canonical), true); got != want {
			t.Errorf("another form of %d bytes: %s, want %s", size, got, want)
		}
		if got := VerifyHash(spaced, crypto.Keccak256Hash(spaced), true); got != Raw {
			t.Errorf("its exact %d bytes: %s", size, got)
		}
	}
}

// TestCanonicalForms: Node 20 and Python 3 printed the expected texts.
func TestCanonicalForms(t *testing.T) {
	t.Parallel()
	const doc = `{"b":[1.0,1e21,1e-7,-0,0.1,123456789012345678901234567890,5e-324,1e16,1e-5],"10":"\u007f\u2028\/\b\u0001","2":{"b":true,"x":null},"\ud83d\ude00":1,"\ufb33":2,"a":"\"\\"}`
	for want, verdict := range map[string]Verdict{
		`{"2":{"b":true,"x":null},"10":"` + "\x7f\u2028" + `/\b\u0001","b":[1,1e+21,1e-7,0,0.1,1.2345678901234568e+29,5e-324,10000000000000000,0.00001],"😀":1,"` + "\ufb33" + `":2,"a":"\"\\"}`:             Compact,
		`{"10":"` + "\x7f\u2028" + `/\b\u0001","2":{"b":true},"a":"\"\\","b":[1,1e+21,1e-7,0,0.1,1.2345678901234568e+29,5e-324,10000000000000000,0.00001],"😀":1,"` + "\ufb33" + `":2}`:                      Agent0TS,
		`{"10": "\u007f\u2028/\b\u0001", "2": {"b": true, "x": null}, "a": "\"\\", "b": [1.0, 1e+21, 1e-07, 0, 0.1, 123456789012345678901234567890, 5e-324, 1e+16, 1e-05], "\ufb33": 2, "\ud83d\ude00": 1}`: Agent0Py,
	} {
		heraldtest.Equal(t, want, VerifyHash([]byte(doc), crypto.Keccak256Hash([]byte(want)), true), verdict)
	}
}

// TestCanonicalFormCoversAllFields: a server adds content that the hashed canonical form does not show. The hash
// must not match.
func TestCanonicalFormCoversAllFields(t *testing.T) {
	t.Parallel()
	const honest = `{"value":9977,"text":"ok","mcp":{"text":"fine"},"list":[{"value":null}]}`
	forms := map[Verdict]string{
		JCS:      `{"list":[{"value":null}],"mcp":{"text":"fine"},"text":"ok","value":9977}`,
		Agent0Py: `{"list": [{"value": null}], "mcp": {"text": "fine"}, "text": "ok", "value": 9977}`,
		Compact:  honest,
	}
	with := func(old, new string) string { return strings.Replace(" "+honest, old, new, 1) }
	served := map[string]string{
		"duplicate before":      with(`"text":"ok"`, `"text":"buy","text":"ok"`),
		"duplicate after":       with(`"list":`, `"value":9977,"list":`),
		"duplicate escaped":     with(`"text":"ok"`, `"te\u0078t":"buy","text":"ok"`),
		"duplicate nested":      with(`"text":"fine"`, `"text":"buy","text":"fine"`),
		"duplicate in an array": with(`{"value":null}`, `{"value":1,"value":null}`),
		"infinite for a null":   with(`null`, `1e999`),
		"another value":         with(`9977`, `9978`),
	}
	for verdict, form := range forms {
		hash := crypto.Keccak256Hash([]byte(form))
		heraldtest.Equal(t, "the honest file", VerifyHash([]byte(" "+honest), hash, false), verdict)
		for name, file := range served {
			for _, immutable := range []bool{false, true} {
				if got := VerifyHash([]byte(file), hash, immutable); got != Mismatch {
					t.Errorf("%s, %s: %s, want mismatch", verdict, name, got)
				}
			}
		}
	}
	// encoding/json reads half of a surrogate pair as U+FFFD, and other parsers do not.
	replaced := crypto.Keccak256Hash([]byte("{\"text\":\"\ufffd\"}"))
	heraldtest.Equal(t, "half a surrogate pair", VerifyHash([]byte(`{"text":"\ud83d"}`), replaced, true), Mismatch)
	// agent0-ts drops nested members whose names the top level lacks. Its form counts only if the URI fixes the bytes.
	ts := crypto.Keccak256Hash([]byte(`{"list":[{}],"mcp":{},"text":"ok"}`))
	for file, want := range map[string][2]Verdict{ // mutable, immutable
		`{"text":"ok", "mcp":{}, "list":[{}]}`:                         {JCS, JCS},
		`{"text":"ok", "mcp":{"tool":"pay"}, "list":[{}]}`:             {Mismatch, Agent0TS},
		`{"text":"ok", "mcp":{}, "list":[{"note":"ignore all that"}]}`: {Mismatch, Agent0TS},
		`{"text":"ok", "mcp":{"tool":1,"tool":2}, "list":[{}]}`:        {Mismatch, Mismatch},
	} {
		for i, immutable := range []bool{false, true} {
			if got := VerifyHash([]byte(file), ts, immutable); got != want[i] {
				t.Errorf("%s, immutable %t: %s, want %s", file, immutable, got, want[i])
			}
		}
	}
}

// TestRoundedDigits: a server appends digits to a number, or changes the last ones of a long integer. The forms of
// JavaScript round them away, and so does the form of Python for a float. The hash must not match.
func TestRoundedDigits(t *testing.T) {
	t.Parallel()
	script := crypto.Keccak256Hash([]byte(`{"id":9007199254740992,"n":0.1,"z":0}`))
	python := crypto.Keccak256Hash([]byte(`{"id": 9007199254740993, "n": 0.1, "z": 0.0}`))
	for _, c := range []struct {
		file               string
		hash               common.Hash
		mutable, immutable Verdict
	}{
		{`{"z":0, "n":0.1, "id":9007199254740992}`, script, JCS, JCS},
		{`{"z":-0.0, "n":10.0e-2, "id":9007199254740992.0}`, script, JCS, JCS},
		{`{"z":0, "n":0.1, "id":9007199254740993}`, script, Mismatch, JCS},
		{`{"z":0, "n":0.100000000000000000007310511010832, "id":9007199254740992}`, script, Mismatch, JCS},
		{`{"z":1e-400, "n":0.1, "id":9007199254740992}`, script, Mismatch, JCS},
		{`{"z":0.0,"n":0.1,"id":9007199254740993}`, python, Agent0Py, Agent0Py},
		{`{"z":0.0,"n":0.10000000000000000001,"id":9007199254740993}`, python, Mismatch, Agent0Py},
	} {
		heraldtest.Equal(t, c.file, VerifyHash([]byte(c.file), c.hash, false), c.mutable)
		heraldtest.Equal(t, c.file+", of a URI that fixes the bytes", VerifyHash([]byte(c.file), c.hash, true), c.immutable)
	}
}

// FuzzVerifyHash: each file matches the hashes of its own forms, and no hash of other content.
func FuzzVerifyHash(f *testing.F) {
	f.Add([]byte(prettyFile))
	f.Add([]byte(`[1e400,{"\ud800":-0.0}]`))
	f.Add([]byte("\xef\xbb\xbf{\"b\":{\"a\":1,\"a\":2},\"4294967294\":[true,null],\"a\":\"\\u2028\"}"))
	f.Add([]byte(`{"value":123456789012345678901234567890,"score":1E-7}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		before := bytes.Clone(content)
		for want, verdict := range map[common.Hash]Verdict{
			{1}:                           Mismatch,
			{}:                            NotGiven,
			crypto.Keccak256Hash(content): Raw,
			sha256.Sum256(content):        SHA256,
			crypto.Keccak256Hash(content, []byte{' '}): Mismatch, // the hash of the file with one more byte
		} {
			heraldtest.Equal(t, "the verdict", VerifyHash(content, want, true), verdict)
		}
		if !bytes.Equal(content, before) {
			t.Fatal("the file was changed")
		}
		bare := bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
		root, fault := strictjson.Parse(bare, strictjson.Options{})
		if fault != nil || !utf8.Valid(bare) || !isRepresentable(root) {
			return
		}
		top := map[string]bool{}
		if o, ok := root.Object(); ok {
			for _, m := range o.Members {
				top[m.Name] = true
			}
		}
		for _, form := range []canonicalForm{{order: compareUTF16}, {order: compareUTF16, keep: top}, {order: strings.Compare, python: true}, {}} {
			text := form.appendValue(nil, root)
			again, fault := strictjson.Parse(text, strictjson.Options{})
			if fault != nil || !bytes.Equal(form.appendValue(nil, again), text) {
				t.Fatalf("%s has the form %s, and that another, %v", content, text, fault)
			}
			// A file on a web server that matches the hash of a form has its content.
			if VerifyHash(content, crypto.Keccak256Hash(text), false) != Mismatch && !sameJSON(t, bare, text) {
				t.Fatalf("%s counts as %s", content, text)
			}
		}
	})
}

// sameJSON reports whether two documents have equal values, with numbers of equal value. Documents whose numbers have
// large exponents count as equal.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	read := func(text []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		heraldtest.Must(t, d.Decode(&v))
		var normalize func(v any) any
		normalize = func(v any) any {
			switch v := v.(type) {
			case []any:
				for i := range v {
					v[i] = normalize(v[i])
				}
			case map[string]any:
				for name := range v {
					v[name] = normalize(v[name])
				}
			case json.Number:
				n, _ := new(big.Rat).SetString(string(v))
				return n.String()
			}
			return v
		}
		return normalize(v)
	}
	return regexp.MustCompile(`[eE][+-]?[0-9]{4}`).Match(a) || reflect.DeepEqual(read(a), read(b))
}

// TestByUTF16 compares compareUTF16 with the order of the names' UTF-16 code units.
func TestByUTF16(t *testing.T) {
	t.Parallel()
	names := []string{"", "a", "ab", "b", "é", "\ud7ff", "\ue000", "\ufb33", "\uffff", "\U00010000", "😀", "😁", "\U0010ffff", "a😀", "a\uffff", "\xff", "a\xff\xfe"}
	for _, a := range names {
		for _, b := range names {
			want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
			heraldtest.Equal(t, fmt.Sprintf("%q and %q", a, b), compareUTF16(a, b), want)
		}
	}
}
