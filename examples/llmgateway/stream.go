package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// dialect is an API, by what it calls the most tokens that a completion may have.
type dialect string

const (
	openAI    dialect = "max_completion_tokens" // chat completions
	anthropic dialect = "max_tokens"            // messages
)

// request is what the gateway must know of one.
type request struct {
	dialect
	model  string
	stream bool
	most   int64  // tokens of output
	usage  bool   // the client wants to know of usage
	body   []byte // for the model server
}

// read takes a request apart and puts it together again, so that the model server reads
// nothing else in it than we do.
func (d dialect) read(body []byte) (q request, err error) {
	q = request{dialect: d, most: mostOutput, usage: d == anthropic}
	fields, options, n := map[string]json.RawMessage{}, map[string]any{}, 1
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return q, errors.New("the body is not a JSON object")
	}
	for name, to := range map[string]any{"model": &q.model, "stream": &q.stream, "stream_options": &options, "n": &n,
		"max_tokens": &q.most, string(d): &q.most} {
		if text, ok := fields[name]; ok && json.Unmarshal(text, to) != nil {
			return q, fmt.Errorf("%s is of another type", name)
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
	if d == openAI && q.stream { // it tells usage only to who asks
		q.usage = options["include_usage"] == true
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	q.body, err = json.Marshal(fields)
	return q, err
}

// event is what matters here of what a model server says.
type event struct {
	ID, Object, Model string
	Created           int64
	Choices           []struct{ Delta delta } // OpenAI's
	Index             int                     // Anthropic's, from here on
	Delta             delta
	Message           struct{ Usage usage }
	Usage             usage // both: of all, at the end
}

// delta is a piece of output: text, thoughts or a tool's arguments.
type delta struct {
	Content, Refusal, Text, Thinking string
	JSON                             string                                          `json:"partial_json"`
	Tools                            []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
}

// usage is in tokens, by either API's names.
type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Input      int64 `json:"input_tokens"`
	Written    int64 `json:"cache_creation_input_tokens"`
	Cached     int64 `json:"cache_read_input_tokens"`
	Output     int64 `json:"output_tokens"`
}

func parse(data []byte) (e event) {
	_ = json.Unmarshal(data, &e) // what is not JSON has no tokens: [DONE]
	return e
}

// tokensIn guesses how many tokens so many bytes are. A tokenizer knows better; the
// difference is settled.
func tokensIn(bytes int) int64 { return int64(bytes+3) / 4 }

// tokens guesses how much output the event is.
func (e event) tokens() (n int64) {
	for _, c := range append(e.Choices, struct{ Delta delta }{e.Delta}) {
		d := c.Delta
		n += tokensIn(len(d.Content) + len(d.Refusal) + len(d.Text) + len(d.Thinking) + len(d.JSON))
		for _, t := range d.Tools {
			n += tokensIn(len(t.Function.Arguments))
		}
	}
	return n
}

// report notes what the model server says was used, which counts more than our guesses.
func (c *charge) report(e event) {
	for _, u := range []usage{e.Message.Usage, e.Usage} {
		if in := u.Prompt + u.Input + u.Written + u.Cached; in > 0 {
			c.in = in
		}
	}
	if out := e.Usage.Completion + e.Usage.Output; out > 0 {
		c.out = out
	}
}

// stream is the answer to a request, from the model server to the client.
type stream struct {
	request
	charge *charge
	to     http.ResponseWriter
}

// copy passes events on while they are paid for. An event ends with an empty line.
func (s *stream) copy(ctx context.Context, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, mostInput)
	var all, data []byte
	for lines.Scan() {
		all = append(append(all, lines.Bytes()...), '\n')
		if d, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")); ok {
			data = append(data, d...)
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		e := parse(data)
		paid := s.charge.add(ctx, max(0, min(e.tokens(), s.most-s.charge.out))) // there cannot be more
		s.charge.report(e)
		switch {
		case !paid:
			all = s.end(e)
		case !s.usage && len(e.Choices) == 0 && e.Usage.Completion > 0:
			all = nil // this client did not ask for it, and may not understand it
		}
		if _, err := s.to.Write(all); err != nil || !paid {
			return err
		}
		_ = http.NewResponseController(s.to).Flush()
		all, data = all[:0], data[:0]
	}
	return lines.Err()
}

// end is how a stream ends that is stopped at the limit, instead of e: as one that has had
// max_tokens.
func (s *stream) end(e event) []byte {
	var b bytes.Buffer
	if s.dialect == anthropic {
		fmt.Fprintf(&b, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%d}\n\n", e.Index)
		fmt.Fprintf(&b, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":%d}}\n\n", s.charge.out)
		fmt.Fprint(&b, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
		return b.Bytes()
	}
	chunk := func(choices, usage string) {
		fmt.Fprintf(&b, "data: {\"id\":%q,\"object\":%q,\"created\":%d,\"model\":%q,\"choices\":[%s]%s}\n\n", e.ID, e.Object, e.Created, e.Model, choices, usage)
	}
	chunk(`{"index":0,"delta":{},"finish_reason":"length"}`, "")
	if in, out := s.charge.in, s.charge.out; s.usage {
		chunk("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out))
	}
	fmt.Fprint(&b, "data: [DONE]\n\n")
	return b.Bytes()
}
