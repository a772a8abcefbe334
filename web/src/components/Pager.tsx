import { messages } from "../i18n";

interface Props {
  offset: number;
  pageSize: number;
  total: number;
  onMove: (offset: number) => void;
}

export function Pager({ offset, pageSize, total, onMove }: Props) {
  const text = messages.value.admin;
  if (total === 0) return null;
  return (
    <div class="pager">
      <p class="muted" role="status">
        {text.total(total)}
      </p>
      {total > pageSize && (
        <>
          <button
            type="button"
            class="button"
            disabled={offset === 0}
            onClick={() => onMove(Math.max(0, offset - pageSize))}
          >
            {text.previous}
          </button>
          <button
            type="button"
            class="button"
            disabled={offset + pageSize >= total}
            onClick={() => onMove(offset + pageSize)}
          >
            {text.next}
          </button>
        </>
      )}
    </div>
  );
}
