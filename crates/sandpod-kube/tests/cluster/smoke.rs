//! The testbed's images run, and our exec works in them, with only the RBAC of raw mode.

use bytes::Bytes;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use sandpod_kube::exec::{self, Finished, PodRef};
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_for};
use serde_json::{Value, json};
use tokio::time::timeout;

const BUSYBOX: &str = "sandpod.test/busybox:1";
const SLEEP: &[&str] = &["sleep", "1000000"];
const PYTHON_HELLO: &[&str] = &["python3", "-c", "print(\"hello\")"];
const LIMIT: usize = 4 * 1024 * 1024;

struct Image {
    name: &'static str,
    pod: &'static str,
    /// The command that keeps the Pod running.
    main: &'static [&'static str],
    command: &'static [&'static str],
    answer: &'static str,
}

const IMAGES: [Image; 4] = [
    Image {
        name: BUSYBOX,
        pod: "busybox",
        main: SLEEP,
        command: &["sh", "-c", "echo hello"],
        answer: "hello\n",
    },
    Image {
        name: "sandpod.test/python:1",
        pod: "python",
        main: SLEEP,
        command: PYTHON_HELLO,
        answer: "hello\n",
    },
    Image {
        name: "docker.io/library/python:3.12-slim",
        pod: "python-slim",
        main: SLEEP,
        command: PYTHON_HELLO,
        answer: "hello\n",
    },
    // The image has only /pause, and no shell.
    Image {
        name: "sandpod.test/scratch:1",
        pod: "scratch",
        main: &["/pause"],
        command: &["/pause", "--version"],
        answer: "pause 1\n",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn every_image_runs_a_pod_that_answers_exec() {
    let namespace = Namespace::create().await;
    let client = namespace.raw().await;

    join_all(IMAGES.iter().map(async |image| {
        let pod = TestPod::new(&client, &namespace, image.pod);
        pod.start(image.name, image.main).await;
        let finished = pod.run(image.command, None).await;
        let answer = (text(&finished.stdout), finished.exit_code);
        assert_eq!(answer, (image.answer.to_owned(), 0), "{} answered with {finished:?}", image.name);
        pod.delete().await;
    }))
    .await;

    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_code_and_stderr_come_back() {
    let namespace = Namespace::create().await;
    let pod = TestPod::new(&namespace.raw().await, &namespace, "box");
    pod.start(BUSYBOX, SLEEP).await;

    let finished = pod.run(&["sh", "-c", "echo out; echo err >&2; exit 3"], None).await;

    let expected =
        Finished { stdout: "out\n".into(), stderr: "err\n".into(), exit_code: 3, truncated: false };
    assert_eq!(finished, expected);
    pod.delete().await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_closes_and_cat_ends() {
    let namespace = Namespace::create().await;
    let pod = TestPod::new(&namespace.raw().await, &namespace, "box");
    pod.start(BUSYBOX, SLEEP).await;

    let input: Bytes = (0..1024 * 1024_u32).map(|i| i.to_le_bytes()[i as usize % 3]).collect();
    let finished = pod.run(&["cat"], Some(input.clone())).await;

    assert_eq!((finished.stdout.len(), finished.exit_code), (input.len(), 0), "{}", text(&finished.stderr));
    assert!(finished.stdout == input, "cat gave back other bytes than it got");
    pod.delete().await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_an_error_with_the_runtimes_words() {
    let namespace = Namespace::create().await;
    let client = namespace.raw().await;
    let pod = TestPod::new(&client, &namespace, "box");
    pod.start(BUSYBOX, SLEEP).await;

    let error = exec::run(&client, &pod.reference(), ["/no/such/program"], None, LIMIT).await.unwrap_err();

    assert!(matches!(error, sandpod_kube::Error::NotRun { .. }), "{error}");
    assert!(error.to_string().contains("no such file or directory"), "{error}");
    pod.delete().await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_breaks_pod_security_is_refused_with_the_policys_text() {
    let namespace = Namespace::create().await;
    let pods: Api<Pod> = Api::namespaced(namespace.raw().await, &namespace.name);
    let mut spec = restricted_spec(BUSYBOX, SLEEP);
    spec["containers"][0]["securityContext"] = json!({});
    let pod: Pod = from_json(json!({ "metadata": { "name": "bad" }, "spec": spec }));

    let refused = pods.create(&PostParams::default(), &pod).await.unwrap_err();

    let status = api_status(refused);
    assert_eq!(status.code, 403, "{status:?}");
    assert!(
        status
            .message
            .contains("violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false"),
        "{}",
        status.message
    );
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_raw_role_cannot_read_secrets() {
    let namespace = Namespace::create().await;
    let secrets: Api<Secret> = Api::namespaced(namespace.raw().await, &namespace.name);

    let refused = secrets.list(&ListParams::default()).await.unwrap_err();

    assert_eq!(api_status(refused).code, 403);
    namespace.finish().await;
}

/// Creates a Pod with the rights of the raw role.
struct TestPod {
    client: Client,
    pods: Api<Pod>,
    namespace: String,
    name: String,
}

impl TestPod {
    fn new(client: &Client, namespace: &Namespace, name: &str) -> Self {
        Self {
            client: client.clone(),
            pods: Api::namespaced(client.clone(), &namespace.name),
            namespace: namespace.name.clone(),
            name: name.to_owned(),
        }
    }

    fn reference(&self) -> PodRef {
        PodRef::new(&self.namespace, &self.name)
    }

    async fn start(&self, image: &str, main: &[&str]) {
        let spec = restricted_spec(image, main);
        let pod: Pod = from_json(json!({ "metadata": { "name": self.name }, "spec": spec }));
        self.pods.create(&PostParams::default(), &pod).await.expect("the raw role may create a Pod");
        wait_for(&self.pods, &self.name, "become Ready", |pod| pod.is_some_and(is_ready)).await;
    }

    async fn run(&self, command: &[&str], input: Option<Bytes>) -> Finished {
        let pod = self.reference();
        let run = exec::run(&self.client, &pod, command.iter().copied(), input, LIMIT);
        let ended = timeout(PATIENCE, run).await;
        let ended = ended.unwrap_or_else(|_| panic!("{command:?} in {pod} did not end within {PATIENCE:?}"));
        ended.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    async fn delete(&self) {
        self.pods.delete(&self.name, &DeleteParams::default()).await.expect("the raw role may delete a Pod");
        wait_for(&self.pods, &self.name, "be gone", |pod| pod.is_none()).await;
    }
}

/// A Pod with one container that the `restricted` Pod Security Standard admits.
pub(crate) fn restricted_spec(image: &str, command: &[&str]) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 1000,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": "main",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "resources": { "requests": { "cpu": "1m", "memory": "8Mi" } },
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    })
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

fn api_status(error: kube::Error) -> kube::core::Status {
    match error {
        kube::Error::Api(status) => *status,
        other => panic!("that is no answer of the API server: {other}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
