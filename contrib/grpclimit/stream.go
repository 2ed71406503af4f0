package grpclimit

import (
	"sync"

	"google.golang.org/grpc"
)

// serverStream charges a stream's messages. One goroutine may send while another
// receives.
type serverStream struct {
	grpc.ServerStream
	server *Server
	call   Call
	names  []string

	mu   sync.Mutex // not held while a message is charged or on its way
	over error      // a message was refused: the stream is at its end
}

// RecvMsg charges a message that has come. One that finds no tokens is dropped.
func (s *serverStream) RecvMsg(message any) error {
	if err := s.ended(); err != nil {
		return err
	}
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.charge(s.server.RecvCost, message)
}

// SendMsg charges a message before it leaves.
func (s *serverStream) SendMsg(message any) error {
	if err := s.ended(); err != nil {
		return err
	}
	if err := s.charge(s.server.SendCost, message); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}

func (s *serverStream) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// charge ends the stream if the message cannot be paid for. A handler that goes
// on all the same gets the same error again, not another chance.
func (s *serverStream) charge(cost func(Call, any) int64, message any) error {
	if cost == nil {
		return nil
	}
	n := cost(s.call, message)
	if n <= 0 {
		return nil
	}
	err := s.pay(n)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over = err
	}
	return err
}

func (s *serverStream) pay(n int64) error {
	ctx, limits := s.Context(), &s.server.limits
	if s.server.WaitMessages {
		return limits.wait(ctx, s.names, limits.each(n))
	}
	r, err := limits.allow(ctx, s.names, limits.each(n))
	if err != nil {
		return failure(err)
	}
	if !r.Allowed {
		s.SetTrailer(s.server.describe(r.Result))
		return s.server.refusal(r.Result)
	}
	return nil
}
