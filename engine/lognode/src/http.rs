//! `/healthz`, `/readyz` and `/metrics`, on the side thread.
//!
//! Few connections, and none that says nothing for long: each holds a file, and the files belong to the logs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{keeper::Keeper, metrics, shard::Published, time_source::TimeSource};

/// A shard that has not shown itself for so long is unhealthy, in milliseconds.
const SILENT_MS_MAX: u64 = 5_000;
/// Connections served at once. Others wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// The head of a request must be there within this, also on a connection that was used before.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// A connection ends after this whatever it does, also one that takes its answer a byte at a time.
const CONNECTION_WITHIN: Duration = Duration::from_secs(120);

/// What the pages show.
pub struct Shown {
    /// What the shards published.
    pub published: Vec<Arc<Mutex<Published>>>,
    /// The metadata thread.
    pub keeper: Keeper,
    /// Whether all pchannels are open.
    pub ready: Arc<AtomicBool>,
    /// When the process started.
    pub started: Instant,
}

impl Shown {
    /// Copies of what the shards published last.
    pub fn snapshots(&self) -> Vec<Published> {
        let copy = |p: &Arc<Mutex<Published>>| p.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        self.published.iter().map(copy).collect()
    }
}

/// Serves until the task is aborted.
pub async fn serve(listener: TcpListener, shown: Arc<Shown>) {
    let pages = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(shown);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed, so there is always a place in the end.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = pages.clone();
                tokio::spawn(async move {
                    answer(stream, pages).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "no HTTP connection could be accepted");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, pages: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    // How a stranger's connection ended is of no interest.
    let _ = timeout(CONNECTION_WITHIN, connection).await;
}

async fn healthz(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let now = TimeSource::default().read().boot.get();
    let silent = shown
        .snapshots()
        .iter()
        .position(|p| p.at.get() > 0 && now.saturating_sub(p.at.get()) > SILENT_MS_MAX);
    match silent {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(shard) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("shard {shard} has not shown itself for {SILENT_MS_MAX} ms\n"),
        ),
    }
}

async fn readyz(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    if !shown.ready.load(Ordering::Acquire) {
        return (StatusCode::SERVICE_UNAVAILABLE, "opening pchannels\n".to_owned());
    }
    let failed: Vec<String> = shown
        .snapshots()
        .into_iter()
        .flat_map(|p| p.pchannels)
        .filter(|p| !p.failed.is_empty())
        .map(|p| format!("{}: {}\n", p.name, p.failed))
        .collect();
    if failed.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, failed.concat())
    }
}

async fn metrics_page(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    match metrics::text(&shown) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
