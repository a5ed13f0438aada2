//! The binary `sandpod-router`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use sandpod_kube::kube::Client;
use sandpod_router::access::Access;
use sandpod_router::access::reviews::Reviews;
use sandpod_router::scoped_token::Keys;
use sandpod_router::tls::{Files, Tls};
use sandpod_router::{
    Domain, Limits, Listener, Metrics, Options, Registry, Router, TunnelLimits, Wake, probes, watch,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Forward HTTP, WebSocket and gRPC requests to sandboxes of agent-sandbox
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Address for requests to sandboxes
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
    /// Address for /healthz and /readyz
    #[arg(long, default_value = "[::]:8081")]
    probes: SocketAddr,
    /// Address for /metrics
    #[arg(long, default_value = "[::]:9090")]
    metrics: SocketAddr,
    /// Proof that a caller must bring; repeat it to accept several
    #[arg(long, value_enum, default_values_t = [Auth::Kubernetes])]
    auth: Vec<Auth>,
    /// Audience that a Kubernetes token must have; any of several
    #[arg(long)]
    token_audience: Vec<String>,
    /// File with a secret of scoped tokens; the first signs, all verify
    #[arg(long, required_if_eq("auth", "scoped-token"))]
    token_secret_file: Vec<PathBuf>,
    /// PEM file of the server's certificate; without it the router speaks plain HTTP
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the certificate's key
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file of the authorities of client certificates
    #[arg(long, requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Refuse connections without a client certificate
    #[arg(long, requires = "client_ca")]
    require_client_certificate: bool,
    /// Domain below which the host PORT--SANDBOX.NAMESPACE.DOMAIN is a port of a sandbox
    #[arg(long, value_parser = Domain::new)]
    preview_domain: Option<Domain>,
    /// File with a secret of shared preview links; the first signs, all verify
    #[arg(long, requires = "preview_domain")]
    share_secret_file: Vec<PathBuf>,
    /// Resume a suspended sandbox when a request for it arrives
    #[arg(long)]
    wake: bool,
    /// Seconds that a request waits for a sandbox that starts
    #[arg(long, default_value_t = 60, requires = "wake")]
    wake_seconds: u64,
    /// Namespace of the sandboxes [default: all]
    #[arg(long)]
    namespace: Option<String>,
    /// Requests in flight for one sandbox
    #[arg(long, default_value_t = Limits::default().per_sandbox)]
    max_requests_per_sandbox: usize,
    /// Requests in flight of one caller
    #[arg(long, default_value_t = Limits::default().per_caller)]
    max_requests_per_caller: usize,
    /// Bytes of a request's body [default: unlimited]
    #[arg(long)]
    max_body_bytes: Option<u64>,
    /// Open connections of callers
    #[arg(long, default_value_t = 16_384)]
    max_connections: usize,
    /// Seconds without a byte after which a WebSocket is closed
    #[arg(long, default_value_t = TunnelLimits::default().idle.as_secs())]
    websocket_idle_seconds: u64,
    /// Seconds after which a WebSocket is closed
    #[arg(long, default_value_t = TunnelLimits::default().lifetime.as_secs())]
    websocket_lifetime_seconds: u64,
    /// Seconds that requests in flight get when the router stops
    #[arg(long, default_value_t = 30)]
    drain_seconds: u64,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Auth {
    /// A Kubernetes token or client certificate with the right to create sandboxes/proxy
    Kubernetes,
    /// A token for one sandbox, signed with --token-secret-file
    ScopedToken,
    /// No proof: every caller may use every sandbox
    None,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    tracing_subscriber::fmt().json().init();
    // It fails if there is a provider already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::try_default().await.context("cannot reach the API server")?;
    let metrics: Arc<Metrics> = Arc::default();
    let access = access(&flags, &client, &metrics)?;
    let router = Router::new(Arc::default(), access, options(&flags, &client), metrics);
    let tls = tls(&flags)?;
    let listener = Listener::bind(router.clone(), flags.listen, tls.clone(), flags.max_connections).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", flags.listen))?;

    let stop = CancellationToken::new();
    let registry: Arc<Registry> = router.registry().clone();
    let namespace = flags.namespace.clone();
    tokio::spawn(async move { watch::follow(client, namespace.as_deref(), registry).await });
    for address in [flags.probes, flags.metrics] {
        let socket =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        tokio::spawn(probes::serve(socket, router.clone(), stop.clone()));
    }
    if let Some(tls) = tls {
        let metrics = router.metrics().clone();
        tokio::spawn(async move { tls.reload(&metrics).await });
    }
    let serving = tokio::spawn(listener.serve(stop.clone()));
    tracing::info!(address = %flags.listen, "the router listens");

    wait_for_signal().await?;
    tracing::info!("the router stops");
    stop.cancel();
    let drained = async {
        serving.await.ok();
        router.drained().await;
    };
    if timeout(Duration::from_secs(flags.drain_seconds), drained).await.is_err() {
        tracing::warn!("requests in flight were cut off");
        router.end_tunnels();
    }
    Ok(())
}

fn access(flags: &Flags, client: &Client, metrics: &Arc<Metrics>) -> Result<Access> {
    let is_open = flags.auth.contains(&Auth::None);
    ensure!(!is_open || flags.auth.len() == 1, "--auth none cannot be combined with another way");
    if is_open {
        tracing::warn!("--auth none: every caller that reaches this router may use every sandbox");
    }
    let scoped = flags.auth.contains(&Auth::ScopedToken).then_some(&flags.token_secret_file);
    let shared = Some(&flags.share_secret_file).filter(|files| !files.is_empty());
    let reviews_needed = flags.auth.contains(&Auth::Kubernetes);
    let reviews = || Reviews::new(client.clone(), flags.token_audience.clone(), metrics.clone());
    Ok(Access {
        keys: scoped.map(|files| keys(files)).transpose()?,
        share_keys: shared.map(|files| keys(files)).transpose()?,
        reviews: reviews_needed.then(reviews),
        is_open,
    })
}

fn keys(files: &[PathBuf]) -> Result<Keys> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let secrets: Vec<_> = files.iter().map(read).collect::<Result<_>>()?;
    let secrets: Vec<&[u8]> = secrets.iter().map(Vec::as_slice).collect();
    Keys::new(&secrets).map_err(anyhow::Error::msg)
}

fn options(flags: &Flags, client: &Client) -> Options {
    let wake = || Wake::new(client.clone(), Duration::from_secs(flags.wake_seconds));
    Options {
        limits: Limits {
            per_sandbox: flags.max_requests_per_sandbox,
            per_caller: flags.max_requests_per_caller,
            body_bytes: flags.max_body_bytes.unwrap_or(u64::MAX),
        },
        tunnels: TunnelLimits {
            idle: Duration::from_secs(flags.websocket_idle_seconds),
            lifetime: Duration::from_secs(flags.websocket_lifetime_seconds),
        },
        domain: flags.preview_domain.clone(),
        wake: flags.wake.then(wake),
        ..Options::default()
    }
}

fn tls(flags: &Flags) -> Result<Option<Arc<Tls>>> {
    let (Some(certificate), Some(key)) = (flags.tls_cert.clone(), flags.tls_key.clone()) else {
        return Ok(None);
    };
    let files = Files {
        certificate,
        key,
        client_ca: flags.client_ca.clone(),
        is_client_certificate_required: flags.require_client_certificate,
    };
    Ok(Some(Arc::new(Tls::load(files)?)))
}

async fn wait_for_signal() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
