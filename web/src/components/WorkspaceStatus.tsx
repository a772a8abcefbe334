import { span } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import type { Workspace } from "../types";
import { isWaiting, nextDeadline, wasUsed } from "../workspace";
import { Countdown } from "./Countdown";
import { Icon } from "./Icon";
import { ProgressBar } from "./ProgressBar";
import { StandbyStatus } from "./StandbyStatus";
import { Time } from "./Time";

/**
 * The most relevant fact: the operation in progress, the error, the next deadline, or the last use.
 */
export function WorkspaceStatus({ workspace }: { workspace: Workspace }) {
  if (workspace.operation !== "NONE") return <OperationInProgress workspace={workspace} />;
  if (workspace.deleted_at) return <Deleted workspace={workspace} />;
  if (workspace.phase === "ERROR") return <Failed workspace={workspace} />;
  if (isWaiting(workspace)) return <Waiting workspace={workspace} />;
  if (workspace.error_message && !workspace.error_reason) return <Note message={workspace.error_message} />;
  if (workspace.standby) return <StandbyStatus standby={workspace.standby} />;
  const deadline = nextDeadline(workspace);
  if (deadline) return <Countdown deadline={deadline} />;
  return <LastUsed workspace={workspace} />;
}

function OperationInProgress({ workspace }: { workspace: Workspace }) {
  const started = workspace.op_started_at;
  const seconds = started ? (now.value - Date.parse(started)) / 1000 : 0;
  return (
    <div class="status status-busy">
      <p>
        <span class="spinner" aria-hidden="true" />
        {messages.value.operations[workspace.operation]}
        {seconds >= 1 && <span class="muted">{span(seconds)}</span>}
      </p>
      <ProgressBar progress={workspace.progress} />
      {workspace.error_message && <p class="muted">{workspace.error_message}</p>}
    </div>
  );
}

/** What the last operation is waiting for. It is not an error, and the next operation clears it. */
function Note({ message }: { message: string }) {
  return (
    <div class="note">
      <Icon name="alert" />
      <p>{message}</p>
    </div>
  );
}

function Failed({ workspace }: { workspace: Workspace }) {
  const text = messages.value.failures;
  const reason = workspace.error_reason;
  return (
    <div class="note note-error">
      <Icon name="alert" />
      <div>
        <p>
          <strong>{reason ? text.reasons[reason] : text.unknown}</strong>
        </p>
        {workspace.error_message && (
          <details>
            <summary>{text.details}</summary>
            <p>{workspace.error_message}</p>
          </details>
        )}
      </div>
    </div>
  );
}

function Waiting({ workspace }: { workspace: Workspace }) {
  const text = messages.value;
  return (
    <div class="status status-busy">
      <p>
        <span class="spinner" aria-hidden="true" />
        {text.card.waiting[workspace.desired_state]}
      </p>
      {workspace.error_count > 0 && (
        <p class="muted">
          {text.card.retries(workspace.error_count)}
          {workspace.error_message && ` · ${workspace.error_message}`}
        </p>
      )}
    </div>
  );
}

function Deleted({ workspace }: { workspace: Workspace }) {
  const text = messages.value.card;
  return (
    <p class="status">
      <Icon name="extend" />
      {workspace.purge_at && <SentenceWithTime sentence={text.purgeAt} at={workspace.purge_at} as="full" />}
    </p>
  );
}

function LastUsed({ workspace }: { workspace: Workspace }) {
  const text = messages.value.card;
  return (
    <p class="status">
      <Icon name="extend" />
      {wasUsed(workspace) ? (
        <SentenceWithTime sentence={text.lastUsed} at={workspace.last_access_at} as="relative" />
      ) : (
        <SentenceWithTime sentence={text.created} at={workspace.created_at} as="relative" />
      )}
    </p>
  );
}

const PLACEHOLDER = "\u0000";

/** A sentence with a time at the position that the language puts it. */
export function SentenceWithTime({
  sentence,
  at,
  as,
}: {
  sentence: (time: string) => string;
  at: string;
  as: "relative" | "full";
}) {
  const [before, after] = sentence(PLACEHOLDER).split(PLACEHOLDER);
  return (
    <span>
      {before}
      <Time at={at} as={as} />
      {after}
    </span>
  );
}
