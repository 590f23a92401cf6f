package config

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"golang.org/x/net/http/httpguts"
)

// Traces holds the standard OTEL_ variables that decide whether and where spans are sent. The OpenTelemetry SDK reads
// the others itself.
type Traces struct {
	Service string // OTEL_SERVICE_NAME

	disabled                 bool
	exporter                 string
	protocol, tracesProtocol string
	endpoint, tracesEndpoint string
	headers, tracesHeaders   secret.Secret
}

// On reports whether spans are sent.
func (t Traces) On() bool {
	asked := t.exporter == "otlp" || t.exporter == "" && (t.endpoint != "" || t.tracesEndpoint != "")
	return asked && !t.disabled
}

// Endpoint returns the URL to which traces are sent.
func (t Traces) Endpoint() string {
	if t.tracesEndpoint != "" {
		return t.tracesEndpoint
	}
	return strings.TrimSuffix(cmp.Or(t.endpoint, "http://localhost:4318"), "/") + "/v1/traces"
}

// Headers returns the headers of each request to the collector. They may contain secrets.
func (t Traces) Headers() map[string]string {
	text := t.headers
	if !t.tracesHeaders.IsZero() {
		text = t.tracesHeaders
	}
	headers, _ := parseHeaders(text.Reveal()) // checkHeaders validated the text
	return headers
}

// parseHeaders parses name=value pairs separated by commas. Values are percent-encoded, as OpenTelemetry specifies.
func parseHeaders(s string) (headers map[string]string, ok bool) {
	headers = map[string]string{}
	for _, pair := range splitList(s) {
		name, value, found := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || err != nil || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, false
		}
		headers[http.CanonicalHeaderKey(name)] = value
	}
	return headers, true
}

// variables returns the OTEL_ variables that Herald itself reads. They set fields of t.
func (t *Traces) variables() []variable {
	const samplers = "always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, " +
		"parentbased_traceidratio"
	return []variable{
		{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Private: true, set: setText(&t.endpoint, checkPlainURL),
			Help: "OpenTelemetry collector that accepts OTLP over HTTP, as in http://localhost:4318. Without it, " +
				"nothing is traced."},
		{Name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", Private: true, set: setText(&t.tracesEndpoint, checkPlainURL),
			Help: "The OTLP endpoint for traces only, as a URL with its path."},
		{Name: "OTEL_EXPORTER_OTLP_HEADERS", Secret: true, set: setSecret(&t.headers, checkHeaders),
			Help: "Headers for the collector: name=value, separated by commas. Values are percent-encoded."},
		{Name: "OTEL_EXPORTER_OTLP_TRACES_HEADERS", Secret: true, set: setSecret(&t.tracesHeaders, checkHeaders),
			Help: "Headers for traces only."},
		{Name: "OTEL_EXPORTER_OTLP_PROTOCOL", Default: "http/protobuf", set: setText(&t.protocol),
			Help: "http/protobuf or http/json; grpc is not supported."},
		{Name: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", set: setText(&t.tracesProtocol),
			Help: "Protocol for traces only."},
		{Name: "OTEL_TRACES_EXPORTER", set: setOneOf(&t.exporter, "otlp", "none"),
			Help: "otlp: traces go to http://localhost:4318 if no endpoint is set. none: nothing is traced."},
		{Name: "OTEL_TRACES_SAMPLER", Default: "parentbased_always_on",
			Help: "Selects the deliveries to trace: " + samplers + ".",
			set:  setOneOf(new(string), strings.Split(samplers, ", ")...)}, // the SDK reads it
		{Name: "OTEL_TRACES_SAMPLER_ARG",
			Help: "For traceidratio: the share of deliveries to trace, from 0 to 1.",
			set: func(s string) string { // the SDK reads it
				if share, err := strconv.ParseFloat(s, 64); err != nil || !(share >= 0 && share <= 1) {
					return "must be a number from 0 to 1"
				}
				return ""
			}},
		{Name: "OTEL_SERVICE_NAME", Default: "herald", set: setText(&t.Service),
			Help: "The worker's service name in traces."},
		{Name: "OTEL_SDK_DISABLED", Default: "false",
			set:  func(s string) string { t.disabled = strings.EqualFold(s, "true"); return "" },
			Help: "true: nothing is traced."},
	}
}

func checkHeaders(s string) string {
	if _, ok := parseHeaders(s); !ok {
		return "must be name=value pairs separated by commas, the values percent-encoded"
	}
	return ""
}

// checkProtocol returns an error if spans are sent by a protocol that Herald does not support. If no spans are sent it
// accepts every protocol, because other programs may share these variables.
func (t Traces) checkProtocol() error {
	name, protocol := "OTEL_EXPORTER_OTLP_PROTOCOL", t.protocol
	if t.tracesProtocol != "" {
		name, protocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", t.tracesProtocol
	}
	if !t.On() || protocol == "http/protobuf" || protocol == "http/json" {
		return nil
	}
	return &Error{name, "must be http/protobuf or http/json: traces are not sent over grpc. " +
		"Name the collector's HTTP port, usually 4318, or set OTEL_TRACES_EXPORTER=none"}
}
