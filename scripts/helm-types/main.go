// Decodes Kubernetes manifests from standard input with the types of the Kubernetes API, and fails on an unknown field or
// a wrong type. Kinds of other APIs, such as ServiceMonitor, are named and not checked. Writes each howdah.toml of a ConfigMap
// or Secret to the folder in the only argument.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	options := json.SerializerOptions{Yaml: true, Strict: true}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, options)
	reader := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	checked, failed := 0, false
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if isBlank(document) {
			continue
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		switch {
		case runtime.IsNotRegisteredError(err):
			fmt.Printf("not checked: %s\n", kind)
		case err != nil:
			fmt.Fprintf(os.Stderr, "%v: %v\n%s\n", kind, err, document)
			failed = true
		default:
			checked++
			writeSettings(object)
		}
	}
	fmt.Printf("%d objects are valid\n", checked)
	if failed || checked == 0 {
		os.Exit(1)
	}
}

// Writes the settings in an object to a file named after it.
func writeSettings(object runtime.Object) {
	const key = "howdah.toml"
	var name, settings string
	switch object := object.(type) {
	case *core.ConfigMap:
		name, settings = object.Name, object.Data[key]
	case *core.Secret:
		name, settings = object.Name, object.StringData[key]
	}
	if settings == "" || len(os.Args) < 2 {
		return
	}
	path := filepath.Join(os.Args[1], name+".toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Whether a document has only comments and blank lines.
func isBlank(document []byte) bool {
	for _, line := range bytes.Split(document, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}
