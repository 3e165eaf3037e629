// Command allreduce is a job whose ranks need each other: in each round all ranks give a
// number, and have the sum of all. It knows nothing but what torchrun's ranks are told:
// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
//
//	allreduce [ROUNDS [PAUSE]]
//
// It says what the sum was, or which rank was lost, with exit code 3.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		os.Exit(3)
	}
}

func run(args []string) error {
	rounds, pause := 1, time.Duration(0)
	var err error
	if len(args) > 0 {
		if rounds, err = strconv.Atoi(args[0]); err != nil {
			return err
		}
	}
	if len(args) > 1 {
		if pause, err = time.ParseDuration(args[1]); err != nil {
			return err
		}
	}
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return fmt.Errorf("RANK: %w", err)
	}
	world, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return fmt.Errorf("WORLD_SIZE: %w", err)
	}
	master := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	reduce := func(int64) (int64, error) { return 0, nil }
	if rank == 0 {
		reduce, err = gather(master, world)
	} else {
		reduce, err = join(master, rank)
	}
	if err != nil {
		return err
	}
	var sum int64
	for round := range rounds {
		if sum, err = reduce(int64(rank + 1)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		time.Sleep(pause)
	}
	fmt.Printf("rank %d of %d: sum %d\n", rank, world, sum)
	return nil
}

// patience is how long ranks wait for each other to start.
const patience = time.Minute

// gather is the side of rank 0: it waits for all others.
func gather(master string, world int) (func(int64) (int64, error), error) {
	l, err := net.Listen("tcp", master)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	peers := map[int64]net.Conn{}
	for len(peers) < world-1 {
		c, err := l.Accept()
		if err != nil {
			return nil, fmt.Errorf("%d of %d ranks came: %w", len(peers)+1, world, err)
		}
		var rank int64
		if err := binary.Read(c, binary.LittleEndian, &rank); err != nil {
			return nil, err
		}
		if peers[rank] != nil || rank < 1 || rank >= int64(world) {
			return nil, fmt.Errorf("rank %d came a second time, or is none of %d", rank, world)
		}
		peers[rank] = c
	}
	return func(own int64) (int64, error) {
		sum := own
		for rank, c := range peers {
			var n int64
			if err := binary.Read(c, binary.LittleEndian, &n); err != nil {
				return 0, fmt.Errorf("rank %d is lost: %w", rank, err)
			}
			sum += n
		}
		for rank, c := range peers {
			if err := binary.Write(c, binary.LittleEndian, sum); err != nil {
				return 0, fmt.Errorf("rank %d is lost: %w", rank, err)
			}
		}
		return sum, nil
	}, nil
}

// join is the side of all others.
func join(master string, rank int) (func(int64) (int64, error), error) {
	var c net.Conn
	var err error
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if c, err = net.Dial("tcp", master); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
	if err := binary.Write(c, binary.LittleEndian, int64(rank)); err != nil {
		return nil, err
	}
	return func(own int64) (int64, error) {
		if err := binary.Write(c, binary.LittleEndian, own); err != nil {
			return 0, fmt.Errorf("rank 0 is lost: %w", err)
		}
		var sum int64
		if err := binary.Read(c, binary.LittleEndian, &sum); err != nil {
			return 0, fmt.Errorf("rank 0 is lost: %w", err)
		}
		return sum, nil
	}, nil
}
