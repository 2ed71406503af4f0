package main

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// standIn is in the place of a model server. It says words, one a chunk.
type standIn struct {
	words  int64
	hidden int64         // tokens of thoughts, which it uses and does not tell
	before func(i int64) // is called before each word, and at the end
}

func (m standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string
		Stream   bool
		Messages json.RawMessage
		Most     int64 `json:"max_tokens"`
		MostToo  int64 `json:"max_completion_tokens"`
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || q.Messages == nil {
		fail(w, http.StatusBadRequest, "invalid_request_error", "no messages")
		return
	}
	in, out := tokensIn(len(q.Messages)), min(m.words, max(q.Most, q.MostToo))
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":%q,"usage":{"input_tokens":%d,"output_tokens":%d}}`+"\n", q.Model, in, out+m.hidden)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(format string, args ...any) {
		fmt.Fprintf(w, format+"\n\n", args...)
		_ = http.NewResponseController(w).Flush()
	}
	begin, word, end := m.chatCompletions(q.Model, in, out)
	if r.URL.Path == "/v1/messages" {
		begin, word, end = m.messages(q.Model, in, out)
	}
	say("%s", begin)
	for i := range out {
		m.before(i)
		say("%s", word)
	}
	m.before(out)
	say("%s", end)
}

func (m standIn) chatCompletions(model string, in, out int64) (begin, word, end string) {
	const chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":%q,"choices":[%s]%s}`
	begin = fmt.Sprintf(chunk, model, `{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, "")
	word = fmt.Sprintf(chunk, model, `{"index":0,"delta":{"content":"la "},"finish_reason":null}`, "")
	end = fmt.Sprintf(chunk, model, `{"index":0,"delta":{},"finish_reason":"stop"}`, "") + "\n\n" +
		fmt.Sprintf(chunk, model, "", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out+m.hidden, in+out+m.hidden)) + "\n\ndata: [DONE]"
	return begin, word, end
}

func (m standIn) messages(model string, in, out int64) (begin, word, end string) {
	begin = fmt.Sprintf(`event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":%q,"content":[],"usage":{"input_tokens":%d,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, model, in)
	word = `event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"la "}}`
	end = fmt.Sprintf(`event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}}

event: message_stop
data: {"type":"message_stop"}`, out+m.hidden)
	return begin, word, end
}
