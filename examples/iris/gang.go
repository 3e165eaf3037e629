package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// gang is all ranks of the training, as one of them sees it: rank 0 has a connection to each of
// the others, which have one to it.
type gang struct {
	rank, world int
	peers       []net.Conn // of rank 0: by rank, the first is nil; of others: the one to rank 0
}

// patience is how long ranks wait for each other to start.
const patience = time.Minute

// joinGang meets the other ranks. Without RANK it is a gang of one.
func joinGang() (*gang, error) {
	if os.Getenv("RANK") == "" {
		return &gang{world: 1}, nil
	}
	g := &gang{}
	var err error
	if g.rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return nil, fmt.Errorf("RANK: %w", err)
	}
	if g.world, err = strconv.Atoi(os.Getenv("WORLD_SIZE")); err != nil {
		return nil, fmt.Errorf("WORLD_SIZE: %w", err)
	}
	master := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	if g.rank == 0 {
		return g, g.gather(master)
	}
	return g, g.join(master)
}

// gather has rank 0 wait for all others.
func (g *gang) gather(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	g.peers = make([]net.Conn, g.world)
	for came := 1; came < g.world; came++ {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("%d of %d ranks came: %w", came, g.world, err)
		}
		var rank int64
		if err := binary.Read(c, binary.LittleEndian, &rank); err != nil {
			return err
		}
		if rank < 1 || rank >= int64(g.world) || g.peers[rank] != nil {
			return fmt.Errorf("rank %d came twice, or is none of %d", rank, g.world)
		}
		g.peers[rank] = c
	}
	return nil
}

// join has another rank connect to rank 0, which may not listen yet.
func (g *gang) join(address string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			g.peers = []net.Conn{c}
			return binary.Write(c, binary.LittleEndian, int64(g.rank))
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// allReduce adds t up over all ranks; each has the sum when it returns.
func (g *gang) allReduce(t *totals) error {
	if g.rank > 0 {
		if err := binary.Write(g.peers[0], binary.LittleEndian, t); err != nil {
			return fmt.Errorf("rank 0 is lost: %w", err)
		}
		if err := binary.Read(g.peers[0], binary.LittleEndian, t); err != nil {
			return fmt.Errorf("rank 0 is lost: %w", err)
		}
		return nil
	}
	for rank := 1; rank < g.world; rank++ { // in order, so that each run gives the same sum
		var other totals
		if err := binary.Read(g.peers[rank], binary.LittleEndian, &other); err != nil {
			return fmt.Errorf("rank %d is lost: %w", rank, err)
		}
		for i := range t {
			t[i] += other[i]
		}
	}
	for rank := 1; rank < g.world; rank++ {
		if err := binary.Write(g.peers[rank], binary.LittleEndian, t); err != nil {
			return fmt.Errorf("rank %d is lost: %w", rank, err)
		}
	}
	return nil
}
