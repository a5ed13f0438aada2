// Pause does nothing, for ever: the process that holds a Pod's namespaces open,
// and the only file of the image without a shell.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("pause 1")
		return
	}
	// As PID 1 it is the parent of every orphan: an ignored SIGCHLD lets the kernel reap them.
	signal.Ignore(syscall.SIGCHLD)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
