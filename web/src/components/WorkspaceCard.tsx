import { messages } from "../i18n";
import { useWorkspaceTask } from "../state/task";
import type { Workspace } from "../types";
import type { Viewer } from "../workspace";
import { ActionButtons } from "./ActionButtons";
import { ErrorNote } from "./ErrorNote";
import { HomeNotice, homeSize } from "./HomeSize";
import { PhaseChip } from "./PhaseChip";
import { SentenceWithTime, WorkspaceStatus } from "./WorkspaceStatus";

interface Props {
  workspace: Workspace;
  viewer: Viewer;
  onDone?: () => void;
}

export function WorkspaceCard({ workspace, viewer, onDone }: Props) {
  const task = useWorkspaceTask(workspace);
  const text = messages.value.card;
  return (
    <li
      class="card"
      data-testid="workspace-card"
      data-workspace-id={workspace.id}
      data-phase={workspace.phase}
      data-operation={workspace.operation}
    >
      <div class="card-head">
        <h2>
          {workspace.deleted_at ? (
            workspace.name
          ) : (
            <a href={`/workspaces/${workspace.id}`}>{workspace.name}</a>
          )}
        </h2>
        <PhaseChip phase={workspace.phase} />
      </div>
      {viewer === "admin" && <p class="card-text muted">{text.owner(workspace.owner.username)}</p>}
      {workspace.description && <p class="card-text">{workspace.description}</p>}
      {workspace.deleted_at && (
        <p class="card-text muted">
          <SentenceWithTime sentence={text.deletedAt} at={workspace.deleted_at} as="relative" />
        </p>
      )}
      <div class="card-foot">
        <WorkspaceStatus workspace={workspace} />
        {workspace.home?.measured_at && <p class="card-text muted">{text.home(homeSize(workspace.home))}</p>}
        <HomeNotice home={workspace.home} />
        <ErrorNote error={task.error} onDismiss={task.clear} />
        <ActionButtons workspace={workspace} viewer={viewer} task={task} {...(onDone ? { onDone } : {})} />
      </div>
    </li>
  );
}
