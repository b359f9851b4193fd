// Command plane is etcd and the Kubernetes control plane, one program at a time.
//
// The first argument names the program; the others are its own flags. A program ends when its standard input does, so
// that none outlives the process that started it.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) > 1 {
		name := os.Args[1]
		os.Args = os.Args[1:]
		if name == "etcd" {
			go endWithParent()
			etcdmain.Main(os.Args)
			return
		}
		if program, ok := programs[name]; ok {
			go endWithParent()
			os.Exit(cli.Run(program()))
		}
	}
	fmt.Fprintln(os.Stderr, "the first argument is one of: etcd, kube-apiserver, kube-controller-manager, kube-scheduler")
	os.Exit(2)
}

func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}
