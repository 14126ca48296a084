//! `/healthz`, `/readyz` and `/metrics`, on the side thread.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

use crate::{keeper::Keeper, metrics, shard::Published, time_source::TimeSource};

/// A shard that has not shown itself for so long is unhealthy, in milliseconds.
const SILENT_MS_MAX: u64 = 5_000;

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
    if let Err(error) = axum::serve(listener, pages).await {
        tracing::error!(%error, "HTTP ended");
    }
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
