package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

const (
	clientHex = "0x1111111111111111111111111111111111111111"
	hashHex   = "0x2222222222222222222222222222222222222222222222222222222222222222"
	blockHex  = "0x3333333333333333333333333333333333333333333333333333333333333333"
)

// feedback returns a complete job with changes of the form "path=JSON". An empty JSON removes the field.
func feedback(changes ...string) string {
	return change(map[string]any{
		"type": "NewFeedback", "chainId": 8453, "agentId": "42", "clientAddress": clientHex, "feedbackIndex": 7,
		"value": "9977", "valueDecimals": 2, "tag1": "uptime", "tag2": "", "endpoint": "https://agent.example/mcp",
		"feedbackURI": "ipfs://bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku", "feedbackHash": hashHex,
		"blockNumber": 41700000, "blockHash": blockHex, "transactionHash": hashHex, "logIndex": 3, "timestamp": 1770000000,
	}, changes)
}

func response(changes ...string) string {
	return change(map[string]any{"type": "ResponseAppended", "chainId": 8453, "agentId": 42, "clientAddress": clientHex,
		"feedbackIndex": 7, "responder": clientHex, "responseURI": "https://a/b", "transactionHash": hashHex, "logIndex": 4}, changes)
}

func validation(changes ...string) string {
	return change(map[string]any{"type": "ValidationResponse", "chainId": 8453, "agentId": 42, "validatorAddress": clientHex,
		"requestHash": blockHex, "response": 100, "tag": "t", "transactionHash": hashHex, "logIndex": 0}, changes)
}

func change(m map[string]any, changes []string) string {
	for _, c := range changes {
		name, value, _ := strings.Cut(c, "=")
		if value == "" {
			delete(m, name)
		} else {
			m[name] = json.RawMessage(value)
		}
	}
	// json.Marshal would replace bytes that are not UTF-8, which some tests put into values.
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		v := m[name]
		raw, isRaw := v.(json.RawMessage)
		if !isRaw {
			raw, _ = json.Marshal(v)
		}
		fmt.Fprintf(&b, ",%q:%s", name, raw)
	}
	return "{" + b.String()[1:] + "}"
}

func mustParse(t testing.TB, line string) Job {
	t.Helper()
	j, err := Parse([]byte(line), Limits{})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return j
}

func TestParseTakes(t *testing.T) {
	t.Parallel()
	const widest = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
	for name, c := range map[string]struct {
		line  string
		check func(Job) any
		want  any
	}{
		"agent 0":             {feedback(`agentId=0`), func(j Job) any { return j.AgentID.String() }, "0"},
		"widest id":           {feedback(`agentId="` + widest + `"`), func(j Job) any { return j.AgentID.String() }, widest},
		"53 bits as number":   {feedback(`agentId=9007199254740991`), func(j Job) any { return j.AgentID.String() }, "9007199254740991"},
		"number with .0":      {feedback(`feedbackIndex=7.0`), func(j Job) any { return j.FeedbackIndex }, uint64(7)},
		"exact exponent":      {feedback(`feedbackIndex=7e2`), func(j Job) any { return j.FeedbackIndex }, uint64(700)},
		"widest index":        {feedback(`feedbackIndex="18446744073709551615"`), func(j Job) any { return j.FeedbackIndex }, uint64(1<<64 - 1)},
		"lowest value":        {feedback(`value="-1` + strings.Repeat("0", 38) + `"`), func(j Job) any { return j.Value.String() }, "-1" + strings.Repeat("0", 38)},
		"score":               {feedback("value=", "valueDecimals=", "score=95"), func(j Job) any { return fmt.Sprint(j.LegacyScore, j.Value, j.ValueDecimals) }, "true 95 0"},
		"lower-case address":  {feedback(`clientAddress="0xabcdefabcdefabcdefabcdefabcdefabcdefabcd"`), func(j Job) any { return j.ClientAddress.Hex() }, "0xABcdEFABcdEFabcdEfAbCdefabcdeFABcDEFabCD"},
		"upper-case address":  {feedback(`clientAddress="0xABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCD"`), func(j Job) any { return j.ClientAddress.Hex() }, "0xABcdEFABcdEFabcdEfAbCdefabcdeFABcDEFabCD"},
		"null is absent":      {feedback(`tag1=null`, `feedbackHash=null`, `action=null`, `meta=null`), func(j Job) any { return j.Tag1 + j.Action.ToolName }, "agent.receiveFeedback"},
		"unknown chain":       {feedback(`chainId=31337`, `identityRegistry="`+clientHex+`"`, `reputationRegistry="`+clientHex+`"`), func(j Job) any { return j.ChainID }, uint64(31337)},
		"other registry":      {feedback(`validationRegistry="` + clientHex + `"`), func(j Job) any { return j.ValidationRegistry.Hex() }, clientHex},
		"clamped timeout":     {feedback(`action={"timeoutMs":9999999999}`), func(j Job) any { return j.Action.TimeoutMs }, 30000},
		"timeout":             {feedback(`action={"timeoutMs":1000}`), func(j Job) any { return j.Action.TimeoutMs }, 1000},
		"alias":               {feedback(`action={"toolName":"receiveFeedback"}`), func(j Job) any { return j.Action.ToolName }, "receiveFeedback"},
		"no block":            {feedback("blockNumber=", "blockHash=", "transactionHash=", "logIndex=", "timestamp="), func(j Job) any { return j.LogIndex == nil && j.BlockNumber == 0 }, true},
		"meta kept":           {feedback(`meta={"a":[1,{"b":null}],"c":"<é>"}`), func(j Job) any { return string(j.Meta) }, `{"a":[1,{"b":null}],"c":"<é>"}`},
		"revoked by client":   {change(map[string]any{"type": "FeedbackRevoked", "chainId": 1, "agentId": 0, "clientAddress": clientHex, "feedbackIndex": 1}, nil), func(j Job) any { return j.Reason + " " + j.Action.ToolName }, "client agent.receiveRevocation"},
		"response":            {response(), func(j Job) any { return j.Responder.Hex() + " " + j.Action.ToolName }, clientHex + " agent.receiveResponse"},
		"validation":          {validation(), func(j Job) any { return fmt.Sprint(j.Response, *j.LogIndex, " ", j.Action.ToolName) }, "100 0 agent.receiveValidation"},
		"validation registry": {validation(), func(j Job) any { return j.ValidationRegistry.Hex() }, "0x8004Cc8439f36fd5F9F049D9fF86523Df6dAAB58"},
		"agent updated":       {`{"type":"AgentUpdated","chainId":1,"agentId":5}`, func(j Job) any { return j.Key() + j.Action.ToolName }, ""},
		"endpoint not used": {feedback(`action={"resolveEndpoint":true,"endpoint":{"transport":"http","url":"https://a/","headers":{"X-A":"s3cret"}}}`),
			func(j Job) any { return j.Action.ResolveEndpoint && j.Action.Endpoint == nil }, true},
		"own endpoint": {feedback(`action={"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a.example/mcp?x=1","headers":{"x-api-key":"s3cret"}}}`),
			func(j Job) any {
				e := j.Action.Endpoint
				return e.Transport + " " + e.URL + " " + e.Headers["X-Api-Key"].Reveal()
			}, "http https://a.example/mcp?x=1 s3cret"},
		"stdio": {feedback(`action={"resolveEndpoint":false,"endpoint":{"transport":"stdio","command":"/bin/agent","args":["-v","a b"]}}`),
			func(j Job) any { return j.Action.Endpoint.Command + fmt.Sprintf("%q", j.Action.Endpoint.Args) }, `/bin/agent["-v" "a b"]`},
	} {
		heraldtest.Equal(t, name, c.check(mustParse(t, c.line)), c.want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	action := func(s string) string { return feedback(`action=` + s) }
	endpoint := func(s string) string { return action(`{"resolveEndpoint":false,"endpoint":` + s + `}`) }
	header := func(s string) string { return endpoint(`{"transport":"http","url":"https://a/","headers":` + s + `}`) }
	for name, c := range map[string]struct{ line, path, problem string }{
		"not JSON":           {`nonsense`, "", "is not JSON"},
		"nothing":            {``, "", "ends too early"},
		"cut short":          {`{"type":"NewFeedback","tag1":"a`, "tag1", "ends too early"},
		"list":               {`[]`, "", "not a JSON object"},
		"two jobs":           {feedback() + feedback(), "", "text after"},
		"trailing comma":     {`{"type":"x",}`, "", "is not JSON"},
		"raw NUL":            {feedback("tag1=\"a\x00b\""), "tag1", "is not JSON"},
		"too long":           {feedback(`tag1="` + strings.Repeat("a", MaxBytes) + `"`), "", "bytes long; a job may have 262144"},
		"many values":        {feedback(`meta={"a":[` + strings.Repeat("0,", 10_000) + `0]}`), "", "has more than 10000 names, values and brackets"},
		"twice":              {`{"type":"NewFeedback","type":"NewFeedback"}`, "type", "given twice"},
		"twice below":        {feedback(`meta={"a":{"b":1,"b":2}}`), "meta.a.b", "given twice"},
		"twice once cleaned": {feedback(`meta={"a\u0000":1,"a\ufffd":2}`), `meta["a�"]`, "given twice"},
		"deep":               {feedback(`meta={"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`), "meta.a" + strings.Repeat("[0]", 32), "nested deeper"},
		"unknown field":      {feedback(`feedBackIndex=1`), "feedBackIndex", "is not a field of a NewFeedback job: did you mean feedbackIndex?"},
		"other case":         {feedback(`feedback_uri="a"`), "feedback_uri", "did you mean feedbackURI?"},
		"misspelt required":  {feedback(`agentId=`, `agentID=1`), "agentID", "is not a field"},
		"other kind's field": {validation(`feedbackIndex=1`), "feedbackIndex", "is not a field of a ValidationResponse job"},
		"no type":            {feedback(`type=`), "type", "is missing"},
		"type":               {feedback(`type="newfeedback"`), "type", "must be NewFeedback"},
		"type no string":     {feedback(`type=1`), "type", "must be a string"},
		"no chain":           {feedback(`chainId=`), "chainId", "is missing"},
		"chain 0":            {feedback(`chainId=0`), "chainId", "must be at least 1"},
		"chain wide":         {feedback(`chainId="9223372036854775808"`), "chainId", "must be at most 9223372036854775807"},
		"no agent":           {feedback(`agentId=`), "agentId", "is missing"},
		"agent null":         {feedback(`agentId=null`), "agentId", "is missing"},
		"299 bits":           {feedback(`agentId="` + "1" + strings.Repeat("0", 90) + `"`), "agentId", "299 bits wide; an id has at most 256"},
		"299 bits, number":   {feedback(`agentId=1` + strings.Repeat("0", 90)), "agentId", "wider than 53 bits"},
		"54 bits, number":    {feedback(`agentId=9007199254740992`), "agentId", "decimal string"},
		"agent negative":     {feedback(`agentId=-1`), "agentId", "must not be negative"},
		"agent fraction":     {feedback(`agentId=1.5`), "agentId", "must be a whole number"},
		"agent hex":          {feedback(`agentId="0x2a"`), "agentId", "must be a whole decimal number"},
		"agent bool":         {feedback(`agentId=true`), "agentId", "must be a whole number or a decimal string"},
		"index 0":            {feedback(`feedbackIndex=0`), "feedbackIndex", "must be at least 1"},
		"index wide":         {feedback(`feedbackIndex="18446744073709551616"`), "feedbackIndex", "must be at most 18446744073709551615"},
		"no index":           {feedback(`feedbackIndex=`), "feedbackIndex", "is missing"},
		"no client":          {feedback(`clientAddress=`), "clientAddress", "is missing"},
		"checksum":           {feedback(`clientAddress="0x8004baa17C55a88189AE136b182e5fdA19dE9b63"`), "clientAddress", "wrong checksum"},
		"no 0x":              {feedback(`clientAddress="1111111111111111111111111111111111111111"`), "clientAddress", "must be an address"},
		"0X":                 {feedback(`clientAddress="0X1111111111111111111111111111111111111111"`), "clientAddress", "must be an address"},
		"short address":      {feedback(`clientAddress="0x11"`), "clientAddress", "must be an address"},
		"zero address":       {feedback(`clientAddress="0x0000000000000000000000000000000000000000"`), "clientAddress", "zero address"},
		"registry checksum":  {feedback(`identityRegistry="0x8004a169FB4a3325136EB29fA0ceB6D2e539a432"`), "identityRegistry", "wrong checksum"},
		"unknown chain":      {feedback(`chainId=31337`), "chainId", "is 31337, whose registries are unknown: set IDENTITY_REGISTRY_31337 and REPUTATION_REGISTRY_31337"},
		"no reputation":      {feedback(`chainId=31337`, `identityRegistry="`+clientHex+`"`), "reputationRegistry", "set REPUTATION_REGISTRY_31337"},
		"no validation":      {validation(`chainId=31337`, `identityRegistry="`+clientHex+`"`), "validationRegistry", "set VALIDATION_REGISTRY_31337"},
		"no value":           {feedback(`value=`), "value", "is missing"},
		"no decimals":        {feedback(`valueDecimals=`), "valueDecimals", "is missing"},
		"decimals":           {feedback(`valueDecimals=19`), "valueDecimals", "must be at most 18"},
		"value wide":         {feedback(`value="1` + strings.Repeat("0", 37) + `01"`), "value", "must be at most 1000"},
		"value low":          {feedback(`value="-1` + strings.Repeat("0", 37) + `01"`), "value", "must be at least -1000"},
		"value minus":        {feedback(`value="-"`), "value", "whole decimal number"},
		"score and value":    {feedback(`score=1`), "score", "one or the other"},
		"score":              {feedback("value=", "valueDecimals=", "score=101"), "score", "must be at most 100"},
		"score negative":     {feedback("value=", "valueDecimals=", "score=-1"), "score", "must not be negative"},
		"hash":               {feedback(`feedbackHash="0x12"`), "feedbackHash", "must be a hash"},
		"tag":                {feedback(`tag1=5`), "tag1", "must be a string"},
		"block":              {feedback(`blockNumber=-1`), "blockNumber", "must not be negative"},
		"milliseconds":       {feedback(`timestamp=1770000000000`), "timestamp", "must be at most 253402300799"},
		"log":                {feedback(`logIndex="x"`), "logIndex", "whole decimal number"},
		"reason":             {change(map[string]any{"type": "FeedbackRevoked", "chainId": 1, "agentId": 0, "clientAddress": clientHex, "feedbackIndex": 1, "reason": "x"}, nil), "reason", "must be client or reorg"},
		"reorg where":        {change(map[string]any{"type": "FeedbackRevoked", "chainId": 1, "agentId": 0, "clientAddress": clientHex, "feedbackIndex": 1, "reason": "reorg"}, nil), "blockHash", "names the block that vanished"},
		"response where":     {response("logIndex="), "logIndex", "is missing"},
		"response zero":      {response(`transactionHash="0x` + strings.Repeat("0", 64) + `"`), "transactionHash", "is missing or zero"},
		"responder":          {response("responder="), "responder", "is missing"},
		"validation request": {validation("requestHash="), "requestHash", "is missing"},
		"validation 101":     {validation("response=101"), "response", "must be at most 100"},
		"meta list":          {feedback(`meta=[]`), "meta", "must be an object"},
		"meta long":          {feedback(`meta={"a":"` + strings.Repeat("x", 4096) + `"}`), "meta", "it may have 4096"},
		"number long":        {feedback(`meta={"a":1` + strings.Repeat("0", 400) + `}`), "meta.a", "too long or too large"},
		"number large":       {feedback(`meta={"a":[1e301]}`), "meta.a[0]", "too long or too large"},
		"number overflow":    {feedback(`agentId=1e999999999999999999999`), "agentId", "too long or too large"},
		"action":             {action(`[]`), "action", "must be an object"},
		"action field":       {action(`{"toolname":"x"}`), "action.toolname", "is not a field of action: did you mean toolName?"},
		"strange field":      {action("{\"a b\u202e\":1}"), `action["a b\u202e"]`, "is not a field of action"},
		"tool":               {action(`{"toolName":"wallet.send"}`), "action.toolName", "HERALD_TOOLS"},
		"tool prefix alone":  {action(`{"toolName":"agent.receive"}`), "action.toolName", "HERALD_TOOLS"},
		"tool characters":    {action(`{"toolName":"agent.receive Feedback"}`), "action.toolName", "HERALD_TOOLS"},
		"tool empty":         {action(`{"toolName":""}`), "action.toolName", "HERALD_TOOLS"},
		"timeout":            {action(`{"timeoutMs":999}`), "action.timeoutMs", "must be at least 1000"},
		"bool":               {action(`{"verifyFileHash":"yes"}`), "action.verifyFileHash", "must be true or false"},
		"no endpoint":        {action(`{"resolveEndpoint":false}`), "action.endpoint", "is missing although"},
		"needless endpoint":  {action(`{"endpoint":{"transport":"http","url":"https://a/"}}`), "action.endpoint", "used only when"},
		"unused, wrong":      {action(`{"resolveEndpoint":true,"endpoint":{"transport":"ws"}}`), "action.endpoint.transport", "must be http, sse or stdio"},
		"bare tool":          {action(`{"toolName":"receiveFunds"}`), "action.toolName", "HERALD_TOOLS"},
		"transport":          {endpoint(`{"transport":"ws","url":"wss://a/"}`), "action.endpoint.transport", "must be http, sse or stdio"},
		"no url":             {endpoint(`{"transport":"sse"}`), "action.endpoint.url", "is missing"},
		"url scheme":         {endpoint(`{"transport":"http","url":"file:///etc/passwd"}`), "action.endpoint.url", "http or https"},
		"url host":           {endpoint(`{"transport":"http","url":"https://:80/"}`), "action.endpoint.url", "http or https"},
		"userinfo":           {endpoint(`{"transport":"http","url":"https://u:p@a/"}`), "action.endpoint.url", "user or password"},
		"command over http":  {endpoint(`{"transport":"http","url":"https://a/","command":"x"}`), "action.endpoint.command", "not used with transport http"},
		"no command":         {endpoint(`{"transport":"stdio"}`), "action.endpoint.command", "is missing"},
		"stdio headers":      {endpoint(`{"transport":"stdio","command":"x","headers":{}}`), "action.endpoint.headers", "not used with transport stdio"},
		"args":               {endpoint(`{"transport":"stdio","command":"x","args":["a",1]}`), "action.endpoint.args[1]", "must be a string"},
		"header Host":        {header(`{"host":"x"}`), "action.endpoint.headers.host", "cannot be set"},
		"header Cookie":      {header(`{"Cookie":"x"}`), "action.endpoint.headers.Cookie", "cannot be set"},
		"header TE":          {header(`{"TE":"x"}`), "action.endpoint.headers.TE", "cannot be set"},
		"header Mcp":         {header(`{"mcp-session-id":"x"}`), "action.endpoint.headers.mcp-session-id", "cannot be set"},
		"header name":        {header(`{"a b":"x"}`), `action.endpoint.headers["a b"]`, "not a header's name"},
		"header value":       {header(`{"X-A":"a\r\nb"}`), "action.endpoint.headers.X-A", "printable ASCII"},
		"header NUL":         {header(`{"X-A":"a\u0000b"}`), "action.endpoint.headers.X-A", "printable ASCII"},
		"header number":      {header(`{"X-A":1}`), "action.endpoint.headers.X-A", "printable ASCII"},
		"headers list":       {header(`["x"]`), "action.endpoint.headers", "must be an object"},
		"template list":      {action(`{"payloadTemplate":["{{score}}"]}`), "action.payloadTemplate", "must be an object"},
		"template name":      {action(`{"payloadTemplate":{"a":["{{score}}",{"b":"x {{ nonsense }}"}]}}`), "action.payloadTemplate.a[1].b", `no value "nonsense"`},
		"template empty":     {action(`{"payloadTemplate":{"a":"{{}}"}}`), "action.payloadTemplate.a", `no value ""`},
		"template id":        {action(`{"payloadTemplate":{"deliveries":[{"score":1,"delivery_id":"5b0e"}]}}`), "action.payloadTemplate.deliveries[0].delivery_id", "must be {{deliveryId}}"},
		"template retracts":  {action(`{"payloadTemplate":{"Retracts":"{{tag1}}"}}`), "action.payloadTemplate.Retracts", "must be {{deliveryId}}"},
		"template ids":       {action(`{"payloadTemplate":{"deliveryId":["{{deliveryId}}"]}}`), "action.payloadTemplate.deliveryId", "must be {{deliveryId}}"},
		"template cleaned":   {action(`{"payloadTemplate":{"deliveryId\u0001":"5b0e"}}`), `action.payloadTemplate["deliveryId\x01"]`, "must be {{deliveryId}}"},
		"template bidi":      {action(`{"payloadTemplate":{"a":[{"\u202a\u202a\u202a\u202a\u202aretracts":"5b0e"}]}}`), `action.payloadTemplate.a[0]["\u202a\u202a\u202a\u202a\u202aretracts"]`, "must be {{deliveryId}}"},
		"template of others": {validation(`action={"payloadTemplate":{"a":"{{score}}"}}`), "action.payloadTemplate.a", `no value "score"`},
	} {
		_, err := Parse([]byte(c.line), Limits{})
		r, ok := errors.AsType[*Refusal](err)
		if !ok {
			t.Errorf("%s: got %v, want a refusal", name, err)
			continue
		}
		heraldtest.Equal(t, name, r.Path, c.path)
		heraldtest.Contains(t, name, r.Problem, c.problem)
		heraldtest.Lacks(t, name, r.Error(), "s3cret")
	}
	_, err := Parse([]byte(header(`{"X-A":"x","x-a":"y"}`)), Limits{})
	heraldtest.Fails(t, "the error", err, "another spelling")
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	l := Limits{MaxTimeout: 5 * time.Second, Tools: []string{"wallet.send"},
		Registries: func(id uint64) (erc8004.Registries, bool) {
			client := mustParse(t, feedback()).ClientAddress
			return erc8004.Deployment{Identity: client, Reputation: client}.Registries(), id == 31337
		}}
	j, err := Parse([]byte(feedback(`chainId=31337`, `action={"toolName":"wallet.send","timeoutMs":6000}`)), l)
	if err != nil || j.Action.ToolName != "wallet.send" || j.Action.TimeoutMs != 5000 || j.ReputationRegistry.Hex() != clientHex {
		t.Errorf("got %+v, %v", j, err)
	}
}

// TestParseRegistries: a job may name only known registries, because a forger can deploy a registry that emits any
// event.
func TestParseRegistries(t *testing.T) {
	t.Parallel()
	const legacy, reputation = "0x8004bd8daB57f14Ed299135749a5CB5c42d341BF", `reputationRegistry="`
	only := Limits{Registries: func(uint64) (erc8004.Registries, bool) {
		return erc8004.Registries{Identity: []common.Address{common.HexToAddress(clientHex)}}, true
	}}
	own := reputation + clientHex + `"`
	for name, c := range map[string]struct {
		line   string
		limits Limits
		path   string
	}{
		"the chain's":    {feedback(reputation + "0x8004BAa17C55a88189AE136b182e5fdA19dE9b63" + `"`), Limits{}, ""},
		"its legacy one": {feedback("chainId=84532", reputation+legacy+`"`), Limits{}, ""},
		"another chain's": {feedback("chainId=84532", reputation+"0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"+`"`),
			Limits{}, "reputationRegistry"},
		"a forger's":               {feedback(own), Limits{}, "reputationRegistry"},
		"a forger's identity":      {feedback(`identityRegistry="` + clientHex + `"`), Limits{}, "identityRegistry"},
		"a forger's validation":    {validation(`validationRegistry="` + clientHex + `"`), Limits{}, "validationRegistry"},
		"not of the kind":          {feedback(`validationRegistry="` + clientHex + `"`), Limits{}, ""},
		"an agent of a forger's":   {`{"type":"AgentUpdated","chainId":8453,"agentId":1,"identityRegistry":"` + clientHex + `"}`, Limits{}, "identityRegistry"},
		"listed":                   {`{"type":"AgentUpdated","chainId":8453,"agentId":1,"identityRegistry":"` + clientHex + `"}`, only, ""},
		"none is listed":           {feedback(`identityRegistry="`+clientHex+`"`, own), only, "reputationRegistry"},
		"of an unknown chain":      {feedback("chainId=31337", `identityRegistry="`+clientHex+`"`, own), Limits{}, ""},
		"missing, and none listed": {feedback(), only, "reputationRegistry"},
	} {
		j, err := Parse([]byte(c.line), c.limits)
		if r, ok := errors.AsType[*Refusal](err); ok != (c.path != "") || r != nil && (r.Path != c.path || j.Kind != "") {
			t.Errorf("%s: %+v, %v", name, j, err)
		}
	}
	// An old registry's agents are those of its own identity registry.
	old, _ := erc8004.LegacyDeployment(84532)
	for _, line := range []string{feedback("chainId=84532", reputation+legacy+`"`),
		validation("chainId=84532", `validationRegistry="`+old.Validation.Hex()+`"`)} {
		heraldtest.Equal(t, "the identity registry of "+line, mustParse(t, line).IdentityRegistry, old.Identity)
	}
	_, err := Parse([]byte(feedback(own)), Limits{})
	heraldtest.Fails(t, "the error", err, "list it in REPUTATION_REGISTRY_8453")
}

func TestParseSanitizes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ given, want, path string }{
		"NUL":                   {`"a\u0000b"`, "a\uFFFDb", "tag1"},
		"invalid UTF-8":         {"\"a\xff\xfeb\"", "a\uFFFD\uFFFDb", "tag1"},
		"surrogate bytes":       {"\"a\xed\xa0\x80b\"", "a\uFFFD\uFFFD\uFFFDb", "tag1"},
		"lone high":             {`"a\ud83db"`, "a\uFFFDb", "tag1"},
		"lone low":              {`"a\udc00"`, "a\uFFFD", "tag1"},
		"high before a letter":  {`"\ud83d\u0041"`, "\uFFFDA", "tag1"},
		"pair":                  {`"\ud83d\ude00"`, "😀", ""},
		"backslash before u":    {`"\\ud83d"`, `\ud83d`, ""},
		"their own replacement": {`"a�b\ufffd"`, "a�b\uFFFD", ""},
		"controls are kept":     {`"a\u0007\u202eb"`, "a\u0007\u202eb", ""},
	} {
		j := mustParse(t, feedback("tag1="+c.given, `tag2="\ud83d\ude00�"`))
		heraldtest.Equal(t, name, j.Tag1, c.want)
		heraldtest.Equal(t, name, strings.Join(j.Sanitized, " "), c.path)
	}
	j := mustParse(t, feedback(`meta={"k\u0000":["x","\u0000"]}`))
	heraldtest.Equal(t, "meta", string(j.Meta), `{"k�":["x","�"]}`)
	heraldtest.Equal(t, "the sanitized fields", strings.Join(j.Sanitized, " "), `meta["k�"] meta["k�"][1]`)
	many := mustParse(t, feedback(`meta={"a":[`+strings.Repeat(`"\u0000",`, 400)+`0]}`))
	heraldtest.Equal(t, "paths", len(many.Sanitized), maxSanitized)
}

// TestRefusedKeepsKey: a job that is refused after its event was parsed keeps the event's key, so that the rejected row
// has it.
func TestRefusedKeepsKey(t *testing.T) {
	t.Parallel()
	want := mustParse(t, feedback()).Key()
	for _, line := range []string{feedback(`meta=[]`), feedback(`unheard=1`), feedback(`action={"timeoutMs":1}`)} {
		j, err := Parse([]byte(line), Limits{})
		if err == nil || j.Key() != want || j.Action.ToolName != "" || j.Meta != nil {
			t.Errorf("%s: %+v, %v", line, j, err)
		}
	}
	for _, line := range []string{feedback(`agentId="x"`), feedback(`tag1=1`), feedback(`feedbackIndex=`), `x`} {
		if j, err := Parse([]byte(line), Limits{}); err == nil || j.Kind != "" || j.AgentID != nil {
			t.Errorf("%s: %+v, %v", line, j, err)
		}
	}
}

// TestRefusalIsSteady: of several faults, Parse always reports the same one: an unknown field in the order of the line,
// or else the first fault in the order of the documented fields.
func TestRefusalIsSteady(t *testing.T) {
	t.Parallel()
	old := strings.Replace(oldJob(`{"tool_name":"x","timeout_ms":1,"server_url":"y"}`), `"score":95`, `"score":950`, 1)
	for line, want := range map[string]string{
		feedback(`agentId="x"`, `clientAddress="x"`, `value="x"`, `feedbackHash="x"`, `action=[]`, `meta=[]`): "agentId",
		`{"type":"NewFeedback","b":1,"a":1}`: "b",
		feedback(`action={"toolName":"x","resolveEndpoint":1,"timeoutMs":"x","payloadTemplate":[]}`):                            "action.toolName",
		feedback(`action={"payloadTemplate":{"b":"{{x}}","a":"{{y}}"}}`):                                                        "action.payloadTemplate.b",
		feedback(`action={"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a/","headers":{"B":1,"A":1}}}`): "action.endpoint.headers.B",
		old: "event_data.score",
		oldJob(`{"tool_name":"x","timeout_ms":1,"server_url":"y"}`): "config.tool_name",
	} {
		for range 20 {
			_, err := Parse([]byte(line), Limits{})
			if r, ok := errors.AsType[*Refusal](err); !ok || r.Path != want {
				t.Fatalf("%s: %v, want %s", line, err, want)
			}
		}
	}
}

// TestParseMemory: a job of many values, or one that stores a path in each of many deeply nested values, would need far
// more memory than it has bytes. One token of the scope enqueue can have 24 jobs parsed at a time.
func TestParseMemory(t *testing.T) {
	name := strings.Repeat("n", 64)
	line := feedback(`meta=` + strings.Repeat(`{"`+name+`":`, 30) + "[" + strings.Repeat("0,", 100_000) + "0]" + strings.Repeat("}", 30))
	if len(line) > MaxBytes {
		t.Fatal(len(line))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = Parse([]byte(line), Limits{})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
		t.Errorf("%d bytes for a job of %d", got, len(line))
	}
}
