package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
)

// dialect is an API, named by its field for the most tokens of a completion.
type dialect string

const (
	openAI    dialect = "max_completion_tokens" // chat completions
	anthropic dialect = "max_tokens"            // messages
)

var dialects = map[string]dialect{"/v1/chat/completions": openAI, "/v1/messages": anthropic}

// request is the part of a request that the gateway uses.
type request struct {
	dialect
	model  string
	stream bool
	most   int64  // tokens of output
	usage  bool   // the client asks for usage
	body   []byte // for the model server
}

// read parses a request and writes it anew, so that the model server reads the same in it
// as we do.
func (d dialect) read(body []byte) (q request, err error) {
	q = request{dialect: d, most: mostOutput, usage: true}
	fields, n := map[string]json.RawMessage{}, 1
	options := struct {
		Usage bool `json:"include_usage"`
	}{}
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return q, errors.New("the body is not a JSON object")
	}
	for _, f := range []struct {
		name string
		to   any
	}{{"model", &q.model}, {"stream", &q.stream}, {"stream_options", &options}, {"n", &n}, {"max_tokens", &q.most}, {string(d), &q.most}} {
		if text, ok := fields[f.name]; ok && json.Unmarshal(text, f.to) != nil {
			return q, fmt.Errorf("%s has the wrong type", f.name)
		}
	}
	switch _, known := prices[q.model]; {
	case !known:
		return q, errors.New("there is no such model")
	case q.most < 1 || q.most > mostOutput:
		return q, fmt.Errorf("max_tokens is %d, want 1 to %d", q.most, mostOutput)
	case n != 1:
		return q, errors.New("n is not 1")
	}
	delete(fields, "max_tokens")
	fields[string(d)], _ = json.Marshal(q.most)
	if d == openAI && q.stream { // the model server reports usage only on request
		q.usage = options.Usage
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	q.body, err = json.Marshal(fields)
	return q, err
}

// event has the fields of a model server's event that matter here.
type event struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct{ Delta, Message delta } // OpenAI's; Message if the answer is no stream
	Index             int                              // Anthropic's, from here on
	Delta             delta
	Content           []delta // if the answer is no stream
	Message           struct{ Usage usage }
	Usage             usage // of both: the total, at the end
}

// delta is a piece of output, or all of it: text, thoughts or a tool's arguments.
type delta struct {
	Content, Refusal, Text, Thinking string
	JSON                             string                                          `json:"partial_json"`
	Tools                            []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
}

// usage maps the names of either API to tokens.
type usage map[string]int64

// field matches the beginning of a stream's data lines, and other lines as a whole.
var field = regexp.MustCompile(`(?m)^(data:|(event|id|retry)?:.*)`)

func parse(text []byte) (e event) {
	_ = json.Unmarshal(field.ReplaceAll(text, nil), &e) // text other than JSON has no tokens: [DONE]
	return e
}

// tokensIn estimates how many tokens so many bytes are. A tokenizer is more exact; the
// difference is settled.
func tokensIn(bytes int) int64 { return int64(bytes+3) / 4 }

// tokens estimates how many tokens of output the event has.
func (e event) tokens() (n int64) {
	all := append(e.Content, e.Delta)
	for _, c := range e.Choices {
		all = append(all, c.Delta, c.Message)
	}
	for _, d := range all {
		n += tokensIn(len(d.Content) + len(d.Refusal) + len(d.Text) + len(d.Thinking) + len(d.JSON))
		for _, t := range d.Tools {
			n += tokensIn(len(t.Function.Arguments))
		}
	}
	return n
}

// report records the use that the model server reports, which replaces our estimates.
func (c *charge) report(e event) {
	for _, u := range []usage{e.Message.Usage, e.Usage} {
		if in := u["prompt_tokens"] + u["input_tokens"] + u["cache_creation_input_tokens"] + u["cache_read_input_tokens"]; in > 0 {
			c.in = in
		}
	}
	if out := e.Usage["completion_tokens"] + e.Usage["output_tokens"]; out > 0 {
		c.out = out
	}
}

var emptyLine = regexp.MustCompile(`\n\r?\n`)

// split finds the first event of a stream, or all of an answer that is no stream.
func (q request) split(text []byte, all bool) (int, []byte, error) {
	if q.stream {
		if end := emptyLine.FindIndex(text); end != nil {
			return end[1], text[:end[1]], nil
		}
	}
	if all && len(text) > 0 {
		return len(text), text, nil
	}
	return 0, nil, nil
}

// copy passes events on to the client while they are paid for.
func (q request) copy(ctx context.Context, to http.ResponseWriter, from io.Reader, c *charge) error {
	events := bufio.NewScanner(from)
	events.Buffer(nil, mostAnswer)
	events.Split(q.split)
	for events.Scan() {
		text, e := events.Bytes(), parse(events.Bytes())
		paid := c.add(ctx, max(0, min(e.tokens(), q.most-c.out))) // a completion cannot have more
		c.report(e)
		switch {
		case !paid: // end before e, as if max_tokens were reached
			text = q.last(e, map[dialect]string{openAI: "length", anthropic: "max_tokens"}[q.dialect], c.in, c.out)
		case !q.usage && len(e.Choices) == 0 && e.Usage != nil:
			text = nil // this client did not ask for it, and may not understand it
		}
		if _, err := to.Write(text); err != nil || !paid {
			return err
		}
		_ = http.NewResponseController(to).Flush()
	}
	return events.Err()
}

// last returns the end of a stream that ends for that reason, in place of e.
func (q request) last(e event, reason string, in, out int64) []byte {
	if q.dialect == anthropic {
		return fmt.Appendf(nil, `event: content_block_stop
data: {"type":"content_block_stop","index":%d}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":%d}}

event: message_stop
data: {"type":"message_stop"}

`, e.Index, reason, out)
	}
	text := e.chunk(fmt.Sprintf(`{"index":0,"delta":{},"finish_reason":%q}`, reason), "")
	if q.usage {
		text += e.chunk("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out))
	}
	return []byte(text + "data: [DONE]\n\n")
}

// chunk returns an event of OpenAI's with the same head as e.
func (e event) chunk(choices, rest string) string {
	return fmt.Sprintf("data: {\"id\":%q,\"object\":%q,\"created\":%d,\"model\":%q,\"choices\":[%s]%s}\n\n", e.ID, e.Object, e.Created, e.Model, choices, rest)
}
