// The Gateway API's CRDs, taken from the module's own files; none of its code is built.
module sandpod.dev/testbed/gateway-api

go 1.26

require sigs.k8s.io/gateway-api v1.4.1
