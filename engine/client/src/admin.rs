//! Administration: one connection per request.

use std::sync::Arc;

use tokio::{io::AsyncWriteExt, time::timeout};
use wire_format::{
    Offset,
    frame::{FrameKind, frame},
    protocol::{AdminReply, AdminRequest, Hello, Intent, PchannelInfo, Refusal},
};

use crate::{
    config::ClientConfig,
    connection::{self, Connection, check_address},
    error::{Error, Outcome, Result},
};

/// What a truncation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// First offset that is kept now.
    pub first_offset: Offset,
    /// What kept it from going as far as was asked; empty if nothing did.
    pub held_by: String,
}

/// Asks a server about its pchannels.
///
/// ```no_run
/// # async fn example() -> Result<(), lognode_client::Error> {
/// use lognode_client::{Admin, ClientConfig, Offset};
///
/// let admin = Admin::new(ClientConfig::new("127.0.0.1:19530"))?;
/// for pchannel in admin.list_pchannels().await? {
///     println!("{}: {}..{}", pchannel.name, pchannel.first_offset, pchannel.next_offset);
/// }
/// admin.truncate("orders", Offset(1_000)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Admin {
    config: Arc<ClientConfig>,
}

impl Admin {
    /// Checks the settings; connects only with the first request.
    pub fn new(config: ClientConfig) -> Result<Self> {
        check_address(&config.server)?;
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// All pchannels of the node, by name.
    pub async fn list_pchannels(&self) -> Result<Vec<PchannelInfo>> {
        Ok(self.ask("", AdminRequest::ListPchannels).await?.pchannels)
    }

    /// Lets messages below `upto` go. Returns when the new first offset is durable; whole segments go, so it may lie
    /// below `upto`.
    pub async fn truncate(&self, pchannel: &str, upto: Offset) -> Result<Truncated> {
        wire_format::limits::check_pchannel_name(pchannel).map_err(Error::InvalidMessage)?;
        let reply = self.ask(pchannel, AdminRequest::Truncate { upto }).await?;
        Ok(Truncated {
            first_offset: reply.first_offset,
            held_by: reply.held_by,
        })
    }

    /// One request, one answer, within `request_deadline`. Not repeated: the caller decides.
    async fn ask(&self, pchannel: &str, request: AdminRequest) -> Result<AdminReply> {
        let hello = Arc::new(Hello::new(&self.config.client_name, Intent::Admin, pchannel));
        let config = Arc::clone(&self.config);
        let mut connection = connection::connect(config, hello, self.config.server.clone()).await?;
        let server = Arc::clone(&connection.server);
        match timeout(self.config.request_deadline, answer(&mut connection, pchannel, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::ConnectTimeout {
                server: server.to_string(),
                waited: self.config.request_deadline,
                step: "answer to an administrative request",
            }),
        }
    }
}

async fn answer(connection: &mut Connection, pchannel: &str, request: AdminRequest) -> Result<AdminReply> {
    const CORRELATION: u64 = 1;
    let server = Arc::clone(&connection.server);
    let bytes = frame(FrameKind::AdminRequest, CORRELATION, &request.to_body());
    connection
        .write
        .write_all(&bytes)
        .await
        .map_err(|e| Error::lost(&server, e))?;
    let frame = connection.frames.next().await?;
    match frame.kind {
        FrameKind::AdminReply => AdminReply::read(&frame.body).map_err(|e| Error::protocol(&server, e)),
        FrameKind::Refusal => {
            let refusal = Refusal::read(&frame.body).map_err(|e| Error::protocol(&server, e))?;
            Err(Error::from_refusal(&server, pchannel, refusal, Outcome::NotStored))
        }
        FrameKind::Goodbye => Err(Error::lost(&server, "the server is going down")),
        _ => Err(Connection::unexpected(&server, &frame, "an admin reply")),
    }
}
