package grpclimit

import (
	"sync/atomic"

	"google.golang.org/grpc"
)

// serverStream charges a stream's messages. One goroutine may send while another
// receives.
type serverStream struct {
	grpc.ServerStream
	server *Server
	call   Call
	names  []string
	over   atomic.Pointer[error] // a message was refused: the stream is at its end
}

// RecvMsg charges a message that has come. One that finds no tokens is dropped.
func (s *serverStream) RecvMsg(message any) error {
	if over := s.over.Load(); over != nil {
		return *over
	}
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.charge(s.server.RecvCost, message)
}

// SendMsg charges a message before it leaves.
func (s *serverStream) SendMsg(message any) error {
	if over := s.over.Load(); over != nil {
		return *over
	}
	if err := s.charge(s.server.SendCost, message); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}

// charge ends the stream if the message cannot be paid for. A handler that goes
// on all the same gets the same error again, not another chance.
func (s *serverStream) charge(cost func(Call, any) int64, message any) (err error) {
	if cost == nil {
		return nil
	}
	n, limits := cost(s.call, message), &s.server.limits
	switch {
	case n <= 0:
		return nil
	case s.server.WaitMessages:
		err = limits.wait(s.Context(), s.names, limits.each(n))
	default:
		_, err = s.server.charge(s.Context(), s.names, limits.each(n))
	}
	if err != nil {
		over := err
		s.over.Store(&over)
	}
	return err
}
